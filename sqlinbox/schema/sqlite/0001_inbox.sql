-- Entries of the inbox: one row for each message that a consumer has accepted, or recognised as a
-- semantic duplicate of one that it had accepted.
--
-- The primary key is the arbiter of every delivery. It must never contain a time.
--
-- Text compares byte by byte (COLLATE BINARY, SQLite's default, written out because it matters). Times are
-- UTC in ISO 8601 with a fixed number of digits, so that they sort as text.
CREATE TABLE IF NOT EXISTS inbox (
    consumer_name    TEXT NOT NULL COLLATE BINARY,
    message_id       TEXT NOT NULL COLLATE BINARY,
    event_type       TEXT,
    source           TEXT,
    business_key     TEXT COLLATE BINARY,
    payload_hash     TEXT NOT NULL COLLATE BINARY,
    contract_version TEXT,
    tenant_id        TEXT,
    received_at      TEXT NOT NULL, -- when the delivery reached the process
    processed_at     TEXT NOT NULL, -- when the entry was written
    result_reference TEXT,
    retention_until  TEXT,          -- NULL: kept for ever
    duplicate_of     TEXT COLLATE BINARY, -- message_id of the first entry with the same business key
    PRIMARY KEY (consumer_name, message_id)
) WITHOUT ROWID;

-- One business action per consumer. Partial, so that consumers without business keys do not pay for it.
CREATE UNIQUE INDEX IF NOT EXISTS inbox_business_key
    ON inbox (consumer_name, business_key)
    WHERE business_key IS NOT NULL;

-- One row for each consumer that the application has configured.
CREATE TABLE IF NOT EXISTS inbox_consumers (
    consumer_name  TEXT NOT NULL COLLATE BINARY PRIMARY KEY,
    owner          TEXT,
    retention      REAL,             -- seconds; NULL: kept for ever
    horizon        TEXT,             -- entries up to this instant may have been purged; NULL: none were
    purged_entries INTEGER NOT NULL DEFAULT 0,
    purged_at      TEXT
) WITHOUT ROWID;

-- Evidence of collisions: a message came with a known key and another payload. One row for each foreign
-- payload, however often it is delivered.
CREATE TABLE IF NOT EXISTS inbox_collisions (
    consumer_name TEXT NOT NULL COLLATE BINARY,
    message_id    TEXT NOT NULL COLLATE BINARY,
    payload_hash  TEXT NOT NULL COLLATE BINARY, -- of the message that was refused
    stored_hash   TEXT NOT NULL COLLATE BINARY, -- of the entry that was accepted first
    accepted_at   TEXT NOT NULL,                -- processed_at of that entry
    first_seen_at TEXT NOT NULL,
    last_seen_at  TEXT NOT NULL,
    deliveries    INTEGER NOT NULL,
    redriven      INTEGER NOT NULL, -- how often the last delivery was redriven, by its own account
    deliveries_since_poisoned INTEGER NOT NULL, -- 1: this delivery put a copy into the poison queue
    PRIMARY KEY (consumer_name, message_id, payload_hash)
) WITHOUT ROWID;
