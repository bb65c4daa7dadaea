//go:build !embedded

package sqlinbox_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/middleware"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox"
	"github.com/watermill-inbox/watermill-inbox/sqlinbox/internal/testdb"
)

// queue is a queue of RabbitMQ that is gone after the test.
type queue struct {
	name      string
	uri       string
	publisher *amqp.Publisher
}

func newQueue(t *testing.T) queue {
	t.Helper()
	q := queue{name: testdb.Unique("orders"), uri: testdb.AMQPURI(t)}
	subscriber := q.subscriber(t)
	require.NoError(t, subscriber.SubscribeInitialize(q.name))
	require.NoError(t, subscriber.Close())
	var err error
	q.publisher, err = amqp.NewPublisher(amqp.NewDurableQueueConfig(q.uri), watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = q.publisher.Close()
		conn, err := amqp091.Dial(q.uri)
		require.NoError(t, err)
		defer conn.Close()
		channel, err := conn.Channel()
		require.NoError(t, err)
		_, err = channel.QueueDelete(q.name, false, false, false)
		require.NoError(t, err)
	})
	return q
}

func (q queue) subscriber(t *testing.T) *amqp.Subscriber {
	t.Helper()
	subscriber, err := amqp.NewSubscriber(amqp.NewDurableQueueConfig(q.uri), watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = subscriber.Close() })
	return subscriber
}

func (q queue) publish(t *testing.T, uuid string) {
	t.Helper()
	require.NoError(t, q.publisher.Publish(q.name, message.NewMessage(uuid, []byte(`{"order": 7}`))))
}

// heir is the consumer that goes on after another one.
type heir struct {
	*rig
	queue queue
}

func newHeir(t *testing.T, schema schema, queue queue) heir {
	t.Helper()
	rig := newRig(t, schema.otherProcess(t, inFlightWait(20*time.Millisecond)))
	rig.router.AddConsumerHandler("billing", queue.name, queue.subscriber(t), sqlinbox.NoPublishHandler(func(tx *sql.Tx, msg *message.Message) error {
		_, err := tx.Exec(`INSERT INTO effects (id) VALUES ($1)`, msg.UUID)
		return err
	})).AddMiddleware(rig.inbox.Middleware)
	rig.run(t)
	return heir{rig: rig, queue: queue}
}

// awaitSettled waits until the heir has acked a delivery of the message.
func (h heir) awaitSettled(t *testing.T, uuid string) {
	t.Helper()
	eventually(t, "the heir to settle the message", func() bool {
		for _, event := range h.diary.of("billing") {
			if event.MessageKey == uuid && event.Err == nil {
				return true
			}
		}
		return false
	})
}

func (h heir) requireOneEffectOf(t *testing.T, uuid string) {
	t.Helper()
	var effects, entries int
	require.NoError(t, h.db.QueryRow(`SELECT count(*) FROM effects WHERE id = $1`, uuid).Scan(&effects))
	require.NoError(t, h.db.QueryRow(`SELECT count(*) FROM inbox WHERE message_id = $1`, uuid).Scan(&entries))
	require.Equal(t, 1, effects, "effects")
	require.Equal(t, 1, entries, "entries")
}

// slowConsumer is a rig on the queue whose handler writes and then waits to be told to end.
func slowConsumer(t *testing.T, ledger ledger, queue queue) (rig *rig, subscriber *amqp.Subscriber, slow *slowEffect) {
	t.Helper()
	rig, subscriber, slow = newRig(t, ledger), queue.subscriber(t), newSlowEffect()
	rig.router.AddConsumerHandler("billing", queue.name, subscriber, sqlinbox.NoPublishHandler(func(tx *sql.Tx, msg *message.Message) error {
		_, err := tx.Exec(`INSERT INTO effects (id) VALUES ($1)`, msg.UUID)
		slow.started <- struct{}{}
		return errors.Join(err, <-slow.release)
	})).AddMiddleware(rig.inbox.Middleware)
	rig.run(t)
	return rig, subscriber, slow
}

func TestARouterThatClosesInMidHandlerLeavesOneEffect(t *testing.T) {
	t.Parallel()
	schema, queue := newSchema(t), newQueue(t)
	rig, _, slow := slowConsumer(t, schema.process(t), queue)
	queue.publish(t, "1")
	await(t, slow.started, "the handler")

	closed := make(chan error, 1)
	go func() { closed <- rig.router.Close() }()
	heir := newHeir(t, schema, queue)
	slow.release <- nil
	require.NoError(t, await(t, closed, "the router's end"))
	queue.publish(t, "2") // comes after whatever is redelivered
	heir.awaitSettled(t, "2")
	heir.requireOneEffectOf(t, "1")
	require.Zero(t, rig.db.Stats().InUse)
}

// The subscriber nacks what is under way when it closes. The heir has the message while the first handler still
// runs: it waits, or is first.
func TestASubscriberThatClosesAndNacksInMidHandlerLeavesOneEffect(t *testing.T) {
	t.Parallel()
	schema, queue := newSchema(t), newQueue(t)
	rig, subscriber, slow := slowConsumer(t, schema.process(t), queue)
	queue.publish(t, "1")
	await(t, slow.started, "the handler")

	require.NoError(t, subscriber.Close())
	heir := newHeir(t, schema, queue)
	heir.awaitSettled(t, "1")
	slow.release <- nil
	require.NoError(t, rig.router.Close())
	heir.requireOneEffectOf(t, "1")
	require.NotContains(t, rig.diary.outcomes("billing"), middleware.OutcomeAccepted, "the cut delivery must not be told as accepted as well")
	require.Zero(t, rig.db.Stats().InUse)
}

// wire is a way to the broker that can be cut: both ends then see a connection that is gone.
type wire struct {
	listener net.Listener
	mu       sync.Mutex
	ends     []net.Conn
}

func newWire(t *testing.T, uri string) (w *wire, through string) {
	t.Helper()
	target, err := url.Parse(uri)
	require.NoError(t, err)
	broker := target.Host
	w = &wire{}
	w.listener, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(w.cut)
	go func() {
		for {
			near, err := w.listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", broker)
			if err != nil {
				_ = near.Close()
				continue
			}
			w.mu.Lock()
			w.ends = append(w.ends, near, far)
			w.mu.Unlock()
			go func() { _, _ = io.Copy(far, near) }()
			go func() { _, _ = io.Copy(near, far) }()
		}
	}()
	target.Host = w.listener.Addr().String()
	return w, target.String()
}

// cut ends every connection, and lets no new one through.
func (w *wire) cut() {
	_ = w.listener.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, end := range w.ends {
		_ = end.Close()
	}
}

// childVariable is set in a process that this test binary starts as a consumer.
const childVariable = "INBOX_TEST_CONSUMER"

func init() {
	if os.Getenv(childVariable) == "" {
		return
	}
	if err := consume(os.Getenv("INBOX_TEST_DSN"), os.Getenv("INBOX_TEST_URI"), os.Getenv("INBOX_TEST_QUEUE")); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// told writes what a consumer's inbox has found to its standard output.
type told struct{}

func (told) ObserveDelivery(event middleware.DeliveryEvent) {
	fmt.Println("outcome", event.Outcome)
}

// consume is a service with one slow handler: it says "started" and goes on when it reads a line. At SIGTERM it
// closes its router, and gives the handler time to end.
func consume(dsn, uri, queue string) error {
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		return err
	}
	store, err := sqlinbox.NewStore(db, sqlinbox.Config{Dialect: sqlinbox.PostgreSQL{}})
	if err != nil {
		return err
	}
	inbox, err := middleware.NewInbox(middleware.InboxConfig{Store: store, Observer: told{}})
	if err != nil {
		return err
	}
	subscriber, err := amqp.NewSubscriber(amqp.NewDurableQueueConfig(uri), watermill.NopLogger{})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	input := bufio.NewReader(os.Stdin)
	router.AddConsumerHandler("billing", queue, subscriber, sqlinbox.NoPublishHandler(func(tx *sql.Tx, msg *message.Message) error {
		if _, err := tx.Exec(`INSERT INTO effects (id) VALUES ($1)`, msg.UUID); err != nil {
			return err
		}
		fmt.Println("started")
		_, err := input.ReadString('\n')
		return err
	})).AddMiddleware(inbox.Middleware)

	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	go func() {
		<-terminated
		fmt.Println("closing")
		_ = router.Close()
	}()
	return router.Run(context.Background())
}

// process is a consumer in a process of its own.
type process struct {
	cmd   *exec.Cmd
	input io.WriteCloser
	lines chan string
	ended chan error
}

func startProcess(t *testing.T, schema schema, queue queue, uri string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0]), lines: make(chan string, 1000), ended: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), childVariable+"=1", "INBOX_TEST_DSN="+schema.dsn, "INBOX_TEST_URI="+uri, "INBOX_TEST_QUEUE="+queue.name)
	p.start(t)
	return p
}

func (p *process) start(t *testing.T) {
	t.Helper()
	var err error
	p.input, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	output, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	var stopped atomic.Bool
	go func() {
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			p.lines <- scanner.Text()
		}
		p.ended <- p.cmd.Wait()
		stopped.Store(true)
	}()
	t.Cleanup(func() {
		if !stopped.Load() {
			_ = p.cmd.Process.Kill()
		}
	})
}

func (p *process) awaitLine(t *testing.T, want string) {
	t.Helper()
	for await(t, p.lines, fmt.Sprintf("the line %q of the process", want)) != want {
	}
}

func (p *process) signal(t *testing.T, signal os.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(signal))
}

func (p *process) goOn(t *testing.T) {
	t.Helper()
	_, err := io.WriteString(p.input, "\n")
	require.NoError(t, err)
}

func TestAProcessThatIsTerminatedInMidHandlerLeavesOneEffect(t *testing.T) {
	t.Parallel()
	schema, queue := newSchema(t), newQueue(t)
	schema.process(t)
	process := startProcess(t, schema, queue, queue.uri)
	queue.publish(t, "1")
	process.awaitLine(t, "started")

	process.signal(t, syscall.SIGTERM)
	process.awaitLine(t, "closing")
	heir := newHeir(t, schema, queue)
	process.goOn(t)
	require.NoError(t, await(t, process.ended, "the process's end"))
	queue.publish(t, "2")
	heir.awaitSettled(t, "2")
	heir.requireOneEffectOf(t, "1")
}

// The handler is in its transaction when its process is stopped; the broker takes the connection for lost and
// gives the message to the heir; then the process goes on as if nothing had happened.
func TestAProcessThatIsPausedUntilAnotherOneHasItsMessageLeavesOneEffect(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]struct {
		losesItsTransaction bool
		process             string
		heir                middleware.Outcome
	}{
		"its transaction is still open":             {false, "outcome accepted", middleware.OutcomeDuplicate},
		"the database has given its transaction up": {true, "outcome error", middleware.OutcomeAccepted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			schema, queue := newSchema(t), newQueue(t)
			schema.process(t)
			paused := schema.as(t, schema.application+"_paused")
			wire, uri := newWire(t, queue.uri)
			process := startProcess(t, paused, queue, uri)
			queue.publish(t, "1")
			process.awaitLine(t, "started")

			process.signal(t, syscall.SIGSTOP)
			wire.cut()
			heir := newHeir(t, schema, queue)
			if end.losesItsTransaction {
				_, err := heir.db.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1`, paused.application)
				require.NoError(t, err)
				heir.awaitSettled(t, "1")
			} else {
				eventually(t, "the heir to find the message in flight", func() bool {
					return len(heir.diary.of("billing")) > 0
				})
				require.Equal(t, middleware.OutcomeInFlight, heir.diary.outcomes("billing")[0])
			}

			process.signal(t, syscall.SIGCONT)
			process.goOn(t)
			process.awaitLine(t, end.process)
			heir.awaitSettled(t, "1")
			outcomes := heir.diary.outcomes("billing")
			require.Equal(t, end.heir, outcomes[len(outcomes)-1])
			heir.requireOneEffectOf(t, "1")
		})
	}
}
