-- Messages that handlers have produced, each in the envelope of Watermill's forwarder, in the order of their commits:
-- SQLite has one writer at a time.
CREATE TABLE IF NOT EXISTS inbox_outbox (
    "offset"     INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again, also after the last row is deleted
    uuid         TEXT NOT NULL,
    payload      BLOB,
    metadata     TEXT,
    created_at   TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    forwarded_at TEXT
);

-- What the relay looks for; small, because rows leave it when they are forwarded.
CREATE INDEX IF NOT EXISTS inbox_outbox_waiting
    ON inbox_outbox ("offset")
    WHERE forwarded_at IS NULL;

-- Rows of the outbox that are no messages, and are kept here so that they do not hold up those behind them.
CREATE TABLE IF NOT EXISTS inbox_outbox_parked (
    "offset"  INTEGER PRIMARY KEY, -- of the row in the outbox
    uuid      TEXT NOT NULL,
    payload   BLOB,
    metadata  TEXT,
    reason    TEXT NOT NULL,
    parked_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);
