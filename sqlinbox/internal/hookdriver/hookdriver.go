// Package hookdriver wraps a database/sql driver, as tracing and metrics libraries do: it lets a test act
// before a statement and change the errors that come back.
package hookdriver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
)

// Hooks are what a wrapped driver calls. Each is optional and safe for concurrent use.
type Hooks struct {
	// BeforeStatement is called before a statement is sent.
	BeforeStatement func(text string)
	// Error gives back the error that the caller sees in the place of err. It is not asked about the errors
	// by which database/sql and drivers talk to each other (driver.ErrBadConn, driver.ErrSkip, io.EOF).
	Error func(err error) error
}

// Open returns a pool of connections that connector makes, with the hooks around them.
func Open(connector driver.Connector, hooks Hooks) *sql.DB {
	return sql.OpenDB(&wrappedConnector{Connector: connector, hooks: hooks})
}

func (h Hooks) before(text string) {
	if h.BeforeStatement != nil {
		h.BeforeStatement(text)
	}
}

func (h Hooks) wrap(err error) error {
	if err == nil || h.Error == nil {
		return err
	}
	for _, protocol := range []error{driver.ErrBadConn, driver.ErrSkip, io.EOF} {
		if errors.Is(err, protocol) {
			return err
		}
	}
	return h.Error(err)
}

type wrappedConnector struct {
	driver.Connector
	hooks Hooks
}

func (c *wrappedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, c.hooks.wrap(err)
	}
	return &conn{Conn: inner, hooks: c.hooks}, nil
}

type conn struct {
	driver.Conn
	hooks Hooks
}

func (c *conn) PrepareContext(ctx context.Context, text string) (driver.Stmt, error) {
	var (
		inner driver.Stmt
		err   error
	)
	if preparer, ok := c.Conn.(driver.ConnPrepareContext); ok {
		inner, err = preparer.PrepareContext(ctx, text)
	} else {
		inner, err = c.Prepare(text)
	}
	if err != nil {
		return nil, c.hooks.wrap(err)
	}
	return &stmt{Stmt: inner, text: text, hooks: c.hooks}, nil
}

func (c *conn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	inner, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, options)
	if err != nil {
		return nil, c.hooks.wrap(err)
	}
	return &tx{Tx: inner, hooks: c.hooks}, nil
}

func (c *conn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	queryer, ok := c.Conn.(driver.QueryerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	c.hooks.before(text)
	inner, err := queryer.QueryContext(ctx, text, args)
	if err != nil {
		return nil, c.hooks.wrap(err)
	}
	return &rows{Rows: inner, hooks: c.hooks}, nil
}

func (c *conn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	execer, ok := c.Conn.(driver.ExecerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	c.hooks.before(text)
	result, err := execer.ExecContext(ctx, text, args)
	return result, c.hooks.wrap(err)
}

func (c *conn) CheckNamedValue(value *driver.NamedValue) error {
	if checker, ok := c.Conn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(value)
	}
	return driver.ErrSkip
}

func (c *conn) ResetSession(ctx context.Context) error {
	if resetter, ok := c.Conn.(driver.SessionResetter); ok {
		return resetter.ResetSession(ctx)
	}
	return nil
}

func (c *conn) IsValid() bool {
	if validator, ok := c.Conn.(driver.Validator); ok {
		return validator.IsValid()
	}
	return true
}

type stmt struct {
	driver.Stmt
	text  string
	hooks Hooks
}

func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	s.hooks.before(s.text)
	inner, err := s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
	if err != nil {
		return nil, s.hooks.wrap(err)
	}
	return &rows{Rows: inner, hooks: s.hooks}, nil
}

func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	s.hooks.before(s.text)
	result, err := s.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
	return result, s.hooks.wrap(err)
}

type tx struct {
	driver.Tx
	hooks Hooks
}

func (t *tx) Commit() error   { return t.hooks.wrap(t.Tx.Commit()) }
func (t *tx) Rollback() error { return t.hooks.wrap(t.Tx.Rollback()) }

type rows struct {
	driver.Rows
	hooks Hooks
}

func (r *rows) Next(dest []driver.Value) error { return r.hooks.wrap(r.Rows.Next(dest)) }
