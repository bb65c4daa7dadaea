-- Entries of the inbox: one row for each message that a consumer has accepted, or recognised as a
-- semantic duplicate of one that it had accepted.
--
-- The primary key is the arbiter of every delivery. It must never contain a time, and the table must not be
-- partitioned by one: two deliveries of one message would then find two different rows.
--
-- COLLATE "C" makes keys compare byte by byte, so that no two different keys are ever taken for one.
CREATE TABLE IF NOT EXISTS inbox (
    consumer_name    text COLLATE "C" NOT NULL,
    message_id       text COLLATE "C" NOT NULL,
    event_type       text,
    source           text,
    business_key     text COLLATE "C",
    payload_hash     text COLLATE "C" NOT NULL,
    contract_version text,
    tenant_id        text,
    received_at      timestamptz NOT NULL, -- when the delivery reached the process, by the process's clock
    processed_at     timestamptz NOT NULL, -- when the entry was written, by the database's clock
    result_reference text,
    retention_until  timestamptz,          -- NULL: kept for ever
    duplicate_of     text COLLATE "C",     -- message_id of the first entry with the same business key
    PRIMARY KEY (consumer_name, message_id)
);

-- One business action per consumer. Partial, so that consumers without business keys do not pay for it.
CREATE UNIQUE INDEX IF NOT EXISTS inbox_business_key
    ON inbox (consumer_name, business_key)
    WHERE business_key IS NOT NULL;

-- One row for each consumer that the application has configured.
CREATE TABLE IF NOT EXISTS inbox_consumers (
    consumer_name  text COLLATE "C" NOT NULL PRIMARY KEY,
    owner          text,
    retention      interval,              -- NULL: kept for ever
    horizon        timestamptz,           -- entries up to this instant may have been purged; NULL: none were
    purged_entries bigint NOT NULL DEFAULT 0,
    purged_at      timestamptz
);

-- Evidence of collisions: a message came with a known key and another payload. One row for each foreign
-- payload, however often it is delivered.
CREATE TABLE IF NOT EXISTS inbox_collisions (
    consumer_name text COLLATE "C" NOT NULL,
    message_id    text COLLATE "C" NOT NULL,
    payload_hash  text COLLATE "C" NOT NULL, -- of the message that was refused
    stored_hash   text COLLATE "C" NOT NULL, -- of the entry that was accepted first
    accepted_at   timestamptz NOT NULL,      -- processed_at of that entry
    first_seen_at timestamptz NOT NULL,
    last_seen_at  timestamptz NOT NULL,
    deliveries    bigint NOT NULL,
    redriven      bigint NOT NULL, -- how often the last delivery was redriven, by its own account
    deliveries_since_poisoned bigint NOT NULL, -- 1: this delivery put a copy into the poison queue
    PRIMARY KEY (consumer_name, message_id, payload_hash)
);
