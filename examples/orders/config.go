package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"regexp"
	"time"
)

// config is what the flags and the environment say.
type config struct {
	plan plan

	name       string
	parallel   int
	progress   time.Duration
	clean      bool
	postgresql string
	amqp       string
}

// The servers that listen on a developer's machine. Flags have no defaults with them: the help prints
// defaults, and a password has no business there.
const (
	localPostgreSQL = "postgres://postgres:postgres@127.0.0.1:5432/postgres?sslmode=disable"
	localAMQP       = "amqp://guest:guest@127.0.0.1:5672/"
)

func parseFlags(args []string) (config, error) {
	var c config
	flags := flag.NewFlagSet("orders", flag.ExitOnError)
	flags.IntVar(&c.plan.orders, "n", 2000, "`orders` to publish")
	flags.Float64Var(&c.plan.duplicates, "duplicates", 0.2, "`share` of orders that are published twice")
	flags.Float64Var(&c.plan.collisions, "collisions", 0.01, "`share` of orders that are followed by another order with the same message key")
	flags.Float64Var(&c.plan.semantic, "semantic", 0.01, "`share` of orders that are followed by the same order with another message key")
	flags.Uint64Var(&c.plan.seed, "seed", 1, "`number` from which the orders are made")
	flags.StringVar(&c.name, "name", "", "`name` of the run, for its schema and queues; a known one goes on (default: made from the flags above)")
	flags.IntVar(&c.parallel, "parallel", 16, "`deliveries` that are handled at one time")
	flags.DurationVar(&c.progress, "progress", 2*time.Second, "`time` between two lines of progress")
	flags.BoolVar(&c.clean, "clean", false, "remove the schema and the queues of the run instead")
	flags.StringVar(&c.postgresql, "postgresql", "", "`DSN` (default: $ORDERS_POSTGRESQL, $INBOX_TEST_POSTGRESQL, or user postgres on the usual local port)")
	flags.StringVar(&c.amqp, "amqp", "", "`URI` (default: $ORDERS_AMQP, $INBOX_TEST_AMQP, or user guest on the usual local port)")
	if err := flags.Parse(args); err != nil {
		return config{}, err
	}
	c.postgresql = cmp.Or(c.postgresql, os.Getenv("ORDERS_POSTGRESQL"), os.Getenv("INBOX_TEST_POSTGRESQL"), localPostgreSQL)
	c.amqp = cmp.Or(c.amqp, os.Getenv("ORDERS_AMQP"), os.Getenv("INBOX_TEST_AMQP"), localAMQP)
	c.name = cmp.Or(c.name, c.plan.name())
	return c, c.validate(flags.Args())
}

var validName = regexp.MustCompile(`^[a-z0-9_]{1,40}$`)

func (c config) validate(extra []string) error {
	var problems []error
	if len(extra) > 0 {
		problems = append(problems, fmt.Errorf("unknown argument %q", extra[0]))
	}
	if c.plan.orders < 1 {
		problems = append(problems, errors.New("-n must be at least 1"))
	}
	for _, share := range []float64{c.plan.duplicates, c.plan.collisions, c.plan.semantic, c.plan.duplicates + c.plan.collisions + c.plan.semantic} {
		if !(share >= 0 && share <= 1) {
			problems = append(problems, errors.New("-duplicates, -collisions and -semantic must be between 0 and 1, together too"))
			break
		}
	}
	if !validName.MatchString(c.name) {
		problems = append(problems, errors.New("-name must be 1 to 40 lower-case letters, digits and underscores"))
	}
	if c.parallel < 1 || c.parallel > 64 {
		problems = append(problems, errors.New("-parallel must be between 1 and 64"))
	}
	if c.progress <= 0 {
		problems = append(problems, errors.New("-progress must be above zero"))
	}
	return errors.Join(problems...)
}

// name is the same for the same orders, so that the same flags find the same run again.
func (p plan) name() string {
	hash := fnv.New32a()
	fmt.Fprint(hash, p.description())
	return fmt.Sprintf("n%d_%08x", p.orders, hash.Sum32())
}

func (c config) schema() string       { return "orders_example_" + c.name }
func (c config) ordersQueue() string  { return "orders_example." + c.name }
func (c config) billingQueue() string { return c.ordersQueue() + ".billing" }
func (c config) poisonQueue() string  { return c.ordersQueue() + ".poison" }
