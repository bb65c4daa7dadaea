package sqlinbox

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"regexp"
)

// SchemaFS holds the schema as SQL files, schema/postgresql/*.sql and schema/sqlite/*.sql, in the order of
// their names. Copy them into your own migrations if you do not use Config.InitializeSchema. Each can be
// applied again without harm.
//
//go:embed schema
var SchemaFS embed.FS

func (s *Store) initializeSchema(ctx context.Context) error {
	dialect := s.config.Dialect.name()
	files, err := fs.Glob(SchemaFS, path.Join("schema", dialect, "*.sql"))
	if err != nil {
		return err
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("cannot begin the transaction of the inbox schema: %w", err)
	}
	defer func() { _ = tx.Rollback() }()

	if s.statements.lockSchema != "" {
		if _, err := tx.ExecContext(ctx, s.statements.lockSchema); err != nil {
			return fmt.Errorf("cannot lock the inbox schema: %w", err)
		}
	}
	for _, file := range files {
		text, err := fs.ReadFile(SchemaFS, file)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, withTable(string(text), s.config.Table)); err != nil {
			return fmt.Errorf("cannot apply %s; grant the role CREATE on the schema, or apply the file with your own migrations and leave InitializeSchema out: %w", file, err)
		}
	}
	if err := s.config.Dialect.commit(ctx, tx); err != nil {
		return fmt.Errorf("cannot commit the inbox schema: %w", err)
	}
	return nil
}

// tableName is the name of a table, or of an index that belongs to one, in the texts of this package.
var tableName = regexp.MustCompile(`\binbox(_[a-z_]+)?\b`)

// withTable puts the configured name in the place of "inbox". The name is validated: nothing of a message
// ever gets into a statement's text.
func withTable(text, table string) string {
	if table == "inbox" {
		return text
	}
	return tableName.ReplaceAllString(text, table+"$1")
}

var validTable = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,39}$`)

func validateTable(table string) error {
	if validTable.MatchString(table) {
		return nil
	}
	return fmt.Errorf("table name %.64q is not 1 to 40 lower-case ASCII letters, digits and underscores, with no digit first", table)
}

func (s statements) withTable(table string) statements {
	for _, text := range []*string{
		&s.insert, &s.insertDuplicate, &s.byKey, &s.byBusinessKey, &s.setResult, &s.recordCollision,
	} {
		*text = withTable(*text, table)
	}
	return s
}
