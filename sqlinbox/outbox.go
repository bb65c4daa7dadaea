package sqlinbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/google/uuid"

	"github.com/watermill-inbox/watermill-inbox/middleware"
)

var (
	// ErrNoOutboxTransaction is returned when a message is published to the outbox outside of a transaction.
	ErrNoOutboxTransaction error = misuse("no transaction in the message's context; publish to the outbox with the context that the handler got from the inbox, or with one from sqlinbox.ContextWithTx")

	// ErrRepeatedUUID is returned when one transaction publishes two messages with one UUID to one topic: a
	// consumer would take the second for a duplicate of the first.
	ErrRepeatedUUID = errors.New("two messages with one UUID for one topic in one transaction; give each its own, for example watermill.NewUUID()")
)

// CausationIDKey is the metadata name of the message key of the message that caused this one.
const CausationIDKey = "causation_id"

// OutboxConfig configures an Outbox.
type OutboxConfig struct {
	// DB is where the inbox is, too. Required.
	DB *sql.DB
	// Dialect is PostgreSQL{} or SQLite{}. Required.
	Dialect Dialect
	// Table is the name of the table; those beside it begin with it. Same rules as Config.Table. Default:
	// "inbox_outbox".
	Table string
	// InitializeSchema creates the tables in NewOutbox. Without it, call Initialize from your migrations.
	InitializeSchema bool
}

func (c *OutboxConfig) setDefaults() {
	if c.Table == "" {
		c.Table = "inbox_outbox"
	}
}

// Validate returns every problem of the configuration at once.
func (c OutboxConfig) Validate() error {
	problems := []error{validateTable(c.Table)}
	if c.DB == nil {
		problems = append(problems, errors.New("DB is nil; set OutboxConfig.DB to the pool of the inbox"))
	}
	if c.Dialect == nil {
		problems = append(problems, errors.New("dialect is nil; set OutboxConfig.Dialect to PostgreSQL{} or SQLite{}"))
	}
	return errors.Join(problems...)
}

// Outbox is a message.Publisher that writes messages in the transaction of their context: the inbox's, in a
// handler, or one of the caller's own (ContextWithTx). They are committed with it or not at all, and a Forwarder
// ships them afterwards. It is usable as InboxConfig.Outbox and as the publisher of a cqrs EventBus or CommandBus.
//
// It is safe for concurrent use, and lives as long as the program.
type Outbox struct {
	config   OutboxConfig
	schema   outboxSchema
	prepared map[string]*sql.Stmt // inserts of a few messages, by their text
}

// preparedMessages is the largest number of messages in one Publish for which the insert is prepared.
const preparedMessages = 4

// NewOutbox returns an Outbox, after it has checked that its table is there.
func NewOutbox(config OutboxConfig) (*Outbox, error) {
	config.setDefaults()
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("invalid outbox config: %w", err)
	}
	o := &Outbox{config: config, schema: newOutboxSchema(config.Dialect, config.Table), prepared: map[string]*sql.Stmt{}}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if config.InitializeSchema {
		if err := o.Initialize(ctx); err != nil {
			return nil, err
		}
	}
	for count := 1; count <= preparedMessages; count++ {
		messages := make(message.Messages, count)
		for i := range messages {
			messages[i] = message.NewMessage("", nil)
		}
		insert, err := o.schema.InsertQuery(outboxTopic, messages)
		if err != nil {
			return nil, err
		}
		statement, err := config.DB.PrepareContext(ctx, insert.Query)
		if err != nil {
			return nil, fmt.Errorf("cannot prepare the insert into the outbox %q; set OutboxConfig.InitializeSchema or call Initialize if the table is missing: %w", config.Table, err)
		}
		o.prepared[insert.Query] = statement
	}
	return o, nil
}

// Initialize creates the tables of the outbox. It is safe to call it again, and from several processes at once.
func (o *Outbox) Initialize(ctx context.Context) error {
	tx, err := o.config.DB.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("cannot begin the transaction of the outbox schema: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	if lock := o.config.Dialect.statements().lockSchema; lock != "" {
		if _, err := tx.ExecContext(ctx, lock); err != nil {
			return fmt.Errorf("cannot lock the outbox schema: %w", err)
		}
	}

	var texts []string
	files, err := fs.Glob(SchemaFS, path.Join("schema/outbox", o.config.Dialect.name(), "*.sql"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := fs.ReadFile(SchemaFS, file)
		if err != nil {
			return err
		}
		texts = append(texts, strings.ReplaceAll(string(text), "inbox_outbox", o.config.Table))
	}
	for _, text := range texts {
		if _, err := tx.ExecContext(ctx, text); err != nil {
			return fmt.Errorf("cannot create the tables of the outbox %q; grant the role CREATE on the schema: %w", o.config.Table, err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("cannot commit the outbox schema: %w", err)
	}
	return nil
}

type outboxTxKey struct{}

// ContextWithTx returns a context with which messages go into the outbox in tx, for code that has a transaction of
// its own, such as an HTTP handler. The inbox knows nothing of such a transaction: TxFromContext, Handler and Guard
// do not find it.
func ContextWithTx(ctx context.Context, tx *sql.Tx) context.Context {
	return context.WithValue(ctx, outboxTxKey{}, tx)
}

// Publish writes messages into the outbox, in the transaction that their context carries. Topic, UUID, metadata and
// order are kept; the messages themselves are not changed. What is written gets the metadata causation_id, the key
// of the message that the handler is working on, and correlation_id from that message if it has none. A message
// without a UUID gets one that is the same each time the handler runs for one message.
//
// It returns ErrNoOutboxTransaction, ErrRepeatedUUID, an error for a message without a UUID outside of an inbox, and
// errors of the database.
func (o *Outbox) Publish(topic string, messages ...*message.Message) error {
	if topic == "" {
		return errors.New("outbox: the topic is empty; give the handler a publish topic (Router.AddHandler)")
	}
	for _, batch := range byTransaction(messages) {
		if err := o.publish(topic, batch.ctx, batch.messages); err != nil {
			return err
		}
	}
	return nil
}

// Close does nothing: the router closes the publisher of each of its handlers, and the outbox serves all of them.
func (o *Outbox) Close() error { return nil }

func (o *Outbox) publish(topic string, ctx context.Context, messages []*message.Message) error {
	tx, ok := txOf(ctx)
	if !ok {
		return ErrNoOutboxTransaction
	}
	unit, inHandler := unitOfWorkFrom(ctx)
	outgoing := make([]*message.Message, len(messages))
	seen := map[string]bool{}
	for i, msg := range messages {
		copied := msg.Copy()
		if err := setIdentity(ctx, unit, copied); err != nil {
			return err
		}
		if err := noteUUID(unit, seen, topic, copied.UUID); err != nil {
			return err
		}
		outgoing[i] = copied
	}

	// Watermill's publisher is made for one transaction. Making one costs a few allocations and no statement.
	publisher, err := wmsql.NewPublisher(preparedTx{Tx: tx, prepared: o.prepared}, wmsql.PublisherConfig{SchemaAdapter: o.schema}, nil)
	if err != nil {
		return err
	}
	err = forwarder.NewPublisher(publisher, forwarder.PublisherConfig{ForwarderTopic: outboxTopic}).Publish(topic, outgoing...)
	if err != nil {
		err = fmt.Errorf("cannot write to the outbox: %w", err)
		if inHandler {
			unit.fail(err) // also if the handler swallows it: SQLite would commit the rest
		}
		return err
	}
	return nil
}

func txOf(ctx context.Context) (*sql.Tx, bool) {
	if unit, ok := unitOfWorkFrom(ctx); ok {
		return unit.tx, true
	}
	tx, ok := ctx.Value(outboxTxKey{}).(*sql.Tx)
	return tx, ok
}

// setIdentity gives an outgoing message what says where it comes from.
func setIdentity(ctx context.Context, unit *unitOfWork, msg *message.Message) error {
	cause, caused := middleware.CauseFromContext(ctx)
	if caused {
		msg.Metadata.Set(CausationIDKey, cause.MessageKey)
		if cause.CorrelationID != "" && wmmiddleware.MessageCorrelationID(msg) == "" {
			wmmiddleware.SetCorrelationID(cause.CorrelationID, msg)
		}
	}
	if msg.UUID != "" {
		return nil
	}
	if !caused || unit == nil {
		return errors.New("outbox: a message has no UUID; outside of a handler it cannot be derived, so set it, for example with watermill.NewUUID()")
	}
	msg.UUID = derivedUUID(cause, unit.nextProduced())
	return nil
}

// derivedUUID is a UUID version 5 (RFC 9562) of consumer, message key and position: the same each time the handler
// runs for one message, so that the inbox of a consumer recognises what it has had.
func derivedUUID(cause middleware.Cause, position int) string {
	name := strconv.Itoa(len(cause.Consumer)) + ":" + cause.Consumer + cause.MessageKey + "#" + strconv.Itoa(position)
	return uuid.NewSHA1(outboxNamespace, []byte(name)).String()
}

// outboxNamespace is arbitrary and belongs to this library. It does not change: derived UUIDs would.
var outboxNamespace = uuid.MustParse("6c7b7c0e-4d0f-4e37-9a54-0b1f4f0b8a11")

// noteUUID refuses a second message with the UUID, in the whole unit of work if there is one.
func noteUUID(unit *unitOfWork, seen map[string]bool, topic, id string) error {
	key := strconv.Itoa(len(topic)) + ":" + topic + id
	isNew := !seen[key]
	seen[key] = true
	if unit != nil {
		isNew = unit.noteProduced(key)
	}
	if isNew {
		return nil
	}
	err := fmt.Errorf("%w: %.64q for topic %q", ErrRepeatedUUID, id, topic)
	if unit != nil {
		unit.fail(err) // also if the handler swallows it
	}
	return err
}

// transactionBatch is consecutive messages of one context.
type transactionBatch struct {
	ctx      context.Context
	messages []*message.Message
}

func byTransaction(messages []*message.Message) []transactionBatch {
	var batches []transactionBatch
	for _, msg := range messages {
		tx, _ := txOf(msg.Context())
		if last := len(batches) - 1; last >= 0 {
			if other, _ := txOf(batches[last].ctx); other == tx {
				batches[last].messages = append(batches[last].messages, msg)
				continue
			}
		}
		batches = append(batches, transactionBatch{ctx: msg.Context(), messages: []*message.Message{msg}})
	}
	return batches
}

// preparedTx runs the inserts that are prepared as prepared statements: with lib/pq that saves a round trip.
type preparedTx struct {
	*sql.Tx
	prepared map[string]*sql.Stmt
}

func (t preparedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if statement, ok := t.prepared[query]; ok {
		return t.StmtContext(ctx, statement).ExecContext(ctx, args...)
	}
	return t.Tx.ExecContext(ctx, query, args...)
}
