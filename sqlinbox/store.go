package sqlinbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/watermill-inbox/watermill-inbox/middleware"
)

// Config configures a Store.
type Config struct {
	// Dialect is PostgreSQL{} or SQLite{}. Required.
	Dialect Dialect

	// Table is the name of the table of entries; the other tables' names begin with it. Lower-case ASCII
	// letters, digits and underscores, at most 40. Default: "inbox". For another schema than the one that
	// the connection finds first, set the search path of the connection.
	Table string

	// InitializeSchema creates or updates the tables in NewStore. Replicas may do it at the same time.
	// Without it, copy the files of SchemaFS into your own migrations.
	InitializeSchema bool

	// InFlightWait is how long a delivery waits for another one of the same key, from whatever process.
	// Default: 5 s.
	InFlightWait time.Duration

	// FailFast makes a delivery not wait for another one of the same key. Where the other one is in another
	// process, PostgreSQL needs 20 ms to tell it from a lock of its own; a database so busy that these take
	// longer makes the delivery fail with middleware.ErrInFlight, too. InFlightWait must be zero.
	FailFast bool

	// ConflictRetries is how often a transaction that the database ended for another one's sake
	// (serialization failure, deadlock) is run again at once. Default: 3. Negative: never.
	ConflictRetries int

	// TxOptions are the options of every transaction. Default: the database's own.
	TxOptions *sql.TxOptions
}

func (c *Config) setDefaults() {
	if c.Table == "" {
		c.Table = "inbox"
	}
	if c.InFlightWait == 0 && !c.FailFast {
		c.InFlightWait = 5 * time.Second
	}
	if c.ConflictRetries == 0 {
		c.ConflictRetries = 3
	}
}

// Validate returns every problem of the configuration at once.
func (c Config) Validate() error {
	var problems []error
	if c.Dialect == nil {
		problems = append(problems, errors.New("dialect is nil; set Config.Dialect to PostgreSQL{} or SQLite{}"))
	}
	if err := validateTable(c.Table); err != nil {
		problems = append(problems, err)
	}
	if c.InFlightWait < 0 {
		problems = append(problems, fmt.Errorf("in-flight wait %s is negative", c.InFlightWait))
	}
	if c.FailFast && c.InFlightWait != 0 {
		problems = append(problems, fmt.Errorf("FailFast does not wait, but InFlightWait is %s; set one of them", c.InFlightWait))
	}
	if c.TxOptions != nil && c.TxOptions.ReadOnly {
		problems = append(problems, errors.New("TxOptions.ReadOnly is set, but the inbox writes an entry in each transaction"))
	}
	return errors.Join(problems...)
}

// Store is a middleware.Store over database/sql. It is safe for concurrent use.
type Store struct {
	db         *sql.DB
	config     Config
	statements statements
	flights    *flights
	guarded    sync.Map // consumers whose handler guards itself, by name

	insert *sql.Stmt
	byKey  *sql.Stmt

	// asksBeforeCommit is true with a driver whose Commit succeeds although the transaction has ended before.
	asksBeforeCommit bool
}

var _ interface {
	middleware.CollisionStore
	middleware.Checker
} = (*Store)(nil)

// NewStore returns a Store over db, after it has checked that the inbox can work there (see Check). It does
// not take db over: closing it stays with the caller, after Close of the Store.
func NewStore(db *sql.DB, config Config) (*Store, error) {
	if db == nil {
		return nil, errors.New("db is nil; open it with sql.Open")
	}
	config.setDefaults()
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("invalid inbox store config: %w", err)
	}
	s := &Store{
		db:         db,
		config:     config,
		statements: config.Dialect.statements().withTable(config.Table),
		flights:    newFlights(),
	}

	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if config.InitializeSchema {
		if err := s.initializeSchema(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.Check(ctx); err != nil {
		return nil, err
	}

	var err error
	if s.asksBeforeCommit, err = s.mustAskBeforeCommit(ctx); err != nil {
		return nil, fmt.Errorf("cannot try the driver's commit: %w", err)
	}
	// database/sql prepares these once on each connection that uses them.
	if s.insert, err = db.PrepareContext(ctx, s.statements.insert); err != nil {
		return nil, fmt.Errorf("cannot prepare the insert of an entry: %w", err)
	}
	if s.byKey, err = db.PrepareContext(ctx, s.statements.byKey); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot prepare the look-up of an entry: %w", err), s.insert.Close())
	}
	return s, nil
}

const startTimeout = time.Minute

// Close releases the prepared statements. The database stays open.
func (s *Store) Close() error {
	return errors.Join(s.insert.Close(), s.byKey.Close())
}

// Process implements middleware.Store.
//
// What the handler did is never guessed: when the answer to COMMIT is an error, whatever it is, that error is
// returned, and the next delivery finds the entry or does not.
func (s *Store) Process(ctx context.Context, entry middleware.Entry, effect func(ctx context.Context) error) (receipt middleware.Receipt, err error) {
	deadline := time.Now().Add(s.config.InFlightWait)
	land, ok := s.flights.takeOff(ctx, entry, deadline)
	if !ok {
		return middleware.Receipt{Disposition: middleware.Held}, endedWhileWaiting(ctx)
	}
	defer func() { land(err == nil && receipt.Disposition.IsKnown()) }()

	for attempt := 0; ; attempt++ {
		receipt, err = s.processOnce(ctx, entry, deadline, effect)
		if err == nil || ctx.Err() != nil {
			return receipt, endedDelivery(ctx, err)
		}
		switch class := s.classify(err); {
		case class == conflict && attempt < s.config.ConflictRetries:
		case class == lockTimeout && errors.Is(err, errBeforeEffect):
			if !time.Now().Before(deadline) {
				return middleware.Receipt{Disposition: middleware.Held}, nil
			}
		default:
			return receipt, withTransience(err, class)
		}
		sleep(ctx, backoff(attempt))
	}
}

// processOnce is one transaction: the entry first, because the insert of it decides whether the effect runs.
func (s *Store) processOnce(ctx context.Context, entry middleware.Entry, deadline time.Time, effect func(ctx context.Context) error) (middleware.Receipt, error) {
	tx, err := s.db.BeginTx(ctx, s.config.TxOptions)
	if err != nil {
		return middleware.Receipt{}, fmt.Errorf("%w: cannot begin the transaction: %w", errBeforeEffect, err)
	}
	// Also on panic and Goexit. After a commit it does nothing; it needs no context, so that a delivery that
	// was cancelled gives its connection back, too.
	defer func() { _ = tx.Rollback() }()

	isNew, err := s.insertEntry(ctx, tx.StmtContext(ctx, s.insert), entry, time.Until(deadline))
	if err != nil {
		return middleware.Receipt{}, fmt.Errorf("%w: cannot insert the entry: %w", errBeforeEffect, err)
	}
	if !isNew {
		return s.known(ctx, tx, entry)
	}

	unit := &unitOfWork{tx: tx, store: s, consumer: entry.Consumer, messageKey: entry.MessageKey}
	err = effect(context.WithValue(ctx, unitOfWorkKey{}, unit))
	if err == nil {
		err = unit.refusal()
	}
	if err != nil {
		return middleware.Receipt{}, rollBack(ctx, tx, err)
	}
	if err := s.commit(ctx, tx); err != nil {
		return middleware.Receipt{}, commitError(ctx, err)
	}
	return middleware.Receipt{Disposition: middleware.Accepted}, nil
}

// commit ends the transaction of an effect.
func (s *Store) commit(ctx context.Context, tx *sql.Tx) error {
	if s.asksBeforeCommit {
		var isOpen bool
		if err := tx.QueryRowContext(ctx, s.statements.isOpen).Scan(&isOpen); err != nil {
			return err
		}
		if !isOpen {
			return ErrTransactionEnded
		}
	}
	return s.config.Dialect.commit(ctx, tx)
}

// mustAskBeforeCommit tries what the driver says to a commit after a handler has run ROLLBACK as a statement.
// PostgreSQL only warns. lib/pq keeps track and fails; pgx succeeds, and the message would be acked and lost.
func (s *Store) mustAskBeforeCommit(ctx context.Context) (bool, error) {
	if s.statements.isOpen == "" {
		return false, nil
	}
	tx, err := s.db.BeginTx(ctx, s.config.TxOptions)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, `ROLLBACK`); err != nil {
		return false, err
	}
	return s.config.Dialect.commit(ctx, tx) == nil, nil
}

// errBeforeEffect marks errors after which the effect surely has not run.
var errBeforeEffect = errors.New("inbox")

// errVanished means that the entry that was in the way of the insert is gone: its transaction was rolled
// back, or it was purged. A fresh transaction finds out.
var errVanished = errors.New("the entry in the way has vanished")

// insertEntry runs the insert statement and tells whether it wrote the entry.
func (s *Store) insertEntry(ctx context.Context, insert *sql.Stmt, entry middleware.Entry, wait time.Duration) (isNew bool, err error) {
	var ignored any
	err = insert.QueryRowContext(ctx,
		entry.Consumer, entry.MessageKey, nullable(entry.EventType), nullable(entry.Source),
		nullable(entry.BusinessKey), entry.PayloadHash, nullable(entry.ContractVersion), nullable(entry.TenantID),
		s.config.Dialect.instant(entry.ReceivedAt), retentionSeconds(entry), s.config.Dialect.wait(wait),
	).Scan(&ignored)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// known reads the entry that was in the way, by a new statement: the snapshot of the insert may be from
// before the other transaction's commit.
func (s *Store) known(ctx context.Context, tx *sql.Tx, entry middleware.Entry) (middleware.Receipt, error) {
	stored, err := scanStored(tx.StmtContext(ctx, s.byKey).QueryRowContext(ctx, entry.Consumer, entry.MessageKey))
	if err == nil {
		return middleware.Receipt{Disposition: middleware.KnownByKey, Stored: stored}, nil
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return middleware.Receipt{}, fmt.Errorf("%w: cannot read the entry by its key: %w", errBeforeEffect, err)
	}
	if entry.BusinessKey == "" {
		return middleware.Receipt{}, errVanished
	}

	stored, err = scanStored(tx.QueryRowContext(ctx, s.statements.byBusinessKey, entry.Consumer, entry.BusinessKey))
	if errors.Is(err, sql.ErrNoRows) {
		return middleware.Receipt{}, errVanished
	}
	if err != nil {
		return middleware.Receipt{}, fmt.Errorf("%w: cannot read the entry by its business key: %w", errBeforeEffect, err)
	}
	return s.recordSemanticDuplicate(ctx, tx, entry, stored)
}

// recordSemanticDuplicate links the new message key to the first entry, so that its own redelivery is a
// plain duplicate.
func (s *Store) recordSemanticDuplicate(ctx context.Context, tx *sql.Tx, entry middleware.Entry, first middleware.StoredEntry) (middleware.Receipt, error) {
	result, err := tx.ExecContext(ctx, s.statements.insertDuplicate,
		entry.Consumer, entry.MessageKey, nullable(entry.EventType), nullable(entry.Source),
		first.MessageKey, entry.PayloadHash, nullable(entry.ContractVersion), nullable(entry.TenantID),
		s.config.Dialect.instant(entry.ReceivedAt), retentionSeconds(entry), nullable(first.ResultReference),
	)
	if err != nil {
		return middleware.Receipt{}, fmt.Errorf("%w: cannot record the semantic duplicate: %w", errBeforeEffect, err)
	}
	if inserted, err := result.RowsAffected(); err != nil || inserted == 0 {
		// Another delivery of the same message was faster.
		return middleware.Receipt{}, errors.Join(errVanished, err)
	}
	if err := s.config.Dialect.commit(ctx, tx); err != nil {
		return middleware.Receipt{}, commitError(ctx, err)
	}
	return middleware.Receipt{Disposition: middleware.KnownByBusinessKey, Stored: first}, nil
}

// RecordCollision implements middleware.CollisionStore.
func (s *Store) RecordCollision(ctx context.Context, collision middleware.Collision, publish func(ctx context.Context) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return withTransience(fmt.Errorf("cannot begin the transaction for the collision: %w", err), s.classify(err))
	}
	defer func() { _ = tx.Rollback() }()

	var sincePoisoned int64
	err = tx.QueryRowContext(ctx, s.statements.recordCollision,
		collision.Consumer, collision.MessageKey, collision.PayloadHash, collision.StoredHash,
		s.config.Dialect.instant(collision.AcceptedAt), collision.Redriven,
	).Scan(&sincePoisoned)
	if err != nil {
		return withTransience(fmt.Errorf("cannot record the collision: %w", err), s.classify(err))
	}
	if sincePoisoned == 1 {
		if err := publish(ctx); err != nil {
			return err
		}
	}
	if err := s.config.Dialect.commit(ctx, tx); err != nil {
		return withTransience(fmt.Errorf("cannot commit the collision: %w", err), s.classify(err))
	}
	return nil
}

func (s *Store) setResult(ctx context.Context, unit *unitOfWork, reference string) error {
	if len(reference) > maxReferenceLength || !utf8.ValidString(reference) || strings.ContainsRune(reference, 0) {
		return fmt.Errorf("result reference %.64q must be at most %d bytes of valid UTF-8 without NUL; keep the result elsewhere and refer to it", reference, maxReferenceLength)
	}
	if _, err := unit.tx.ExecContext(ctx, s.statements.setResult, nullable(reference), unit.consumer, unit.messageKey); err != nil {
		return fmt.Errorf("cannot set the result reference: %w", err)
	}
	return nil
}

const maxReferenceLength = 255

func (s *Store) classify(err error) errorClass {
	switch {
	case errors.Is(err, errVanished):
		return conflict
	case errors.Is(err, ErrTransactionEnded):
		return permanent
	}
	class := s.config.Dialect.classify(err)
	var ofEffect effectError
	switch {
	case class != permanent:
		return class
	case errors.As(err, &ofEffect):
		if ofEffect.lostConnection() {
			return transient
		}
		return permanent
	case isConnectionFailure(err):
		return transient
	default:
		return permanent
	}
}

func backoff(attempt int) time.Duration {
	ceiling := min(time.Millisecond<<min(attempt, 10), 50*time.Millisecond)
	return time.Duration(rand.Int64N(int64(ceiling))) + time.Millisecond
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func nullable(text string) sql.NullString {
	return sql.NullString{String: text, Valid: text != ""}
}

func retentionSeconds(entry middleware.Entry) sql.NullFloat64 {
	return sql.NullFloat64{Float64: entry.Retention.Seconds(), Valid: entry.Retention > 0}
}
