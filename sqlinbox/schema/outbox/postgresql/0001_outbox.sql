-- Messages that handlers have produced, each in the envelope of Watermill's forwarder. The columns are those of
-- watermill-sql, whose publisher writes them and whose subscriber reads them, except that created_at has a time zone:
-- its age is the same in every session.
CREATE TABLE IF NOT EXISTS inbox_outbox (
    "offset"       bigserial,
    uuid           varchar(36) NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    payload        json,
    metadata       json,
    transaction_id xid8        NOT NULL,
    PRIMARY KEY (transaction_id, "offset")
);

-- How far each consumer group has come.
CREATE TABLE IF NOT EXISTS inbox_outbox_offsets (
    consumer_group                varchar(255) PRIMARY KEY,
    offset_acked                  bigint,
    last_processed_transaction_id xid8 NOT NULL
);

-- Rows of the outbox that are no messages, and are kept here so that they do not hold up those behind them.
CREATE TABLE IF NOT EXISTS inbox_outbox_parked (
    "offset"  bigint PRIMARY KEY, -- of the row in the outbox
    uuid      text NOT NULL,
    payload   bytea,
    metadata  text,
    reason    text NOT NULL,
    parked_at timestamptz NOT NULL DEFAULT now()
);
