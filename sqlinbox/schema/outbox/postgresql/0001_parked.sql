-- Rows of the outbox that are no messages, and are kept here so that they do not hold up those behind them.
-- The table of the outbox itself and that of its offsets are those of watermill-sql.
CREATE TABLE IF NOT EXISTS inbox_outbox_parked (
    uuid      text PRIMARY KEY,
    payload   bytea,
    metadata  text,
    reason    text NOT NULL,
    parked_at timestamptz NOT NULL DEFAULT now()
);
