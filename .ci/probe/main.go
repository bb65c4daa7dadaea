// Command probe asks test servers whether they are there, over their own protocols, for .ci/servers.
//
//	probe postgresql URL       log in, run a statement; prints host:port/database
//	probe postgresql-log URL   prints the path of the server's log file, if it is readable here
//	probe amqp URI             log in, open a channel; prints host:port/vhost
//	probe ports N              prints N free TCP ports of 127.0.0.1
//
// It prints no passwords.
package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/lib/pq"
	amqp "github.com/rabbitmq/amqp091-go"
)

// What .ci/servers tells apart.
const (
	exitUsage   = 2
	exitNobody  = 3 // nothing accepts a connection there
	exitRefused = 4 // something does, but refuses us or speaks another protocol
)

const (
	dialTimeout     = 5 * time.Second
	startupPatience = 20 * time.Second // a server that says "I am starting up" is waited for
	logPatience     = 3 * time.Second
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: probe postgresql|postgresql-log|amqp URL, or probe ports N")
		os.Exit(exitUsage)
	}
	argument := os.Args[2]
	var answer string
	var err error
	switch os.Args[1] {
	case "postgresql":
		answer, err = probePostgreSQL(argument)
	case "postgresql-log":
		answer, err = postgreSQLLog(argument)
	case "amqp":
		answer, err = probeAMQP(argument)
	case "ports":
		answer, err = freePorts(argument)
	default:
		err = fmt.Errorf("unknown command %q", os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, withoutPassword(err.Error(), argument))
		if nobodyThere(err) {
			os.Exit(exitNobody)
		}
		os.Exit(exitRefused)
	}
	fmt.Println(answer)
}

// nobodyThere tells a connection that could not be made from one that was made and ended badly.
func nobodyThere(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// parse is url.Parse with an error that does not quote the URL.
func parse(raw string, schemes ...string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errors.New("the value is not a URL (special characters in a password must be percent-encoded)")
	}
	for _, scheme := range schemes {
		if u.Scheme == scheme {
			return u, nil
		}
	}
	return nil, fmt.Errorf("the value is not a URL that starts with %s://", strings.Join(schemes, ":// or "))
}

func withoutPassword(text, raw string) string {
	text = strings.ReplaceAll(text, raw, "(the URL)")
	if u, err := url.Parse(raw); err == nil && u.User != nil {
		if password, ok := u.User.Password(); ok && len(password) > 3 && password != u.User.Username() {
			text = strings.ReplaceAll(text, password, "***")
		}
	}
	return text
}

func openPostgreSQL(raw string) (*sql.DB, error) {
	if _, err := parse(raw, "postgres", "postgresql"); err != nil {
		return nil, err
	}
	db, err := sql.Open("postgres", raw)
	if err != nil {
		return nil, err
	}
	giveUp := time.Now().Add(startupPatience)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
		var one int
		err := db.QueryRowContext(ctx, "SELECT 1").Scan(&one)
		cancel()
		if err == nil {
			return db, nil
		}
		var refusal *pq.Error
		startingUp := errors.As(err, &refusal) && refusal.Code == "57P03" // cannot_connect_now
		if !startingUp || time.Now().After(giveUp) {
			db.Close()
			return nil, err
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func probePostgreSQL(raw string) (string, error) {
	db, err := openPostgreSQL(raw)
	if err != nil {
		return "", err
	}
	defer db.Close()
	u, err := parse(raw, "postgres", "postgresql")
	if err != nil {
		return "", err
	}
	return u.Host + u.Path, nil
}

// postgreSQLLog finds the server's log file. A candidate counts only if a line that we have the server
// write arrives in it, so that a file of another server is never taken for it.
func postgreSQLLog(raw string) (string, error) {
	db, err := openPostgreSQL(raw)
	if err != nil {
		return "", err
	}
	defer db.Close()

	// What a caller knows comes first.
	candidates := []string{os.Getenv("INBOX_TEST_POSTGRESQL_LOG")}
	var dataDirectory, current, cluster string
	for setting, into := range map[string]*string{
		"current_setting('data_directory', true)": &dataDirectory,
		"pg_current_logfile('stderr')":            &current,
		"current_setting('cluster_name', true)":   &cluster,
	} {
		var value sql.NullString
		if err := db.QueryRow("SELECT " + setting).Scan(&value); err == nil { // refused: a role with few rights
			*into = value.String
		}
	}
	if current != "" {
		if !filepath.IsAbs(current) {
			current = filepath.Join(dataDirectory, current)
		}
		candidates = append(candidates, current)
	}
	if cluster != "" { // Debian: "15/main" logs to postgresql-15-main.log
		candidates = append(candidates, "/var/log/postgresql/postgresql-"+strings.ReplaceAll(cluster, "/", "-")+".log")
	}
	for _, pattern := range []string{"/var/log/postgresql/*.log", "/opt/homebrew/var/log/postgresql*.log", "/usr/local/var/log/postgresql*.log"} {
		found, _ := filepath.Glob(pattern)
		candidates = append(candidates, found...)
	}

	random := make([]byte, 8)
	if _, err := rand.Read(random); err != nil {
		return "", err
	}
	marker := "looking for this log: " + hex.EncodeToString(random)
	if _, err := db.Exec("DO $$ BEGIN RAISE LOG '" + marker + "'; END $$"); err != nil {
		return "", err
	}
	for giveUp := time.Now().Add(logPatience); time.Now().Before(giveUp); time.Sleep(50 * time.Millisecond) {
		readable := 0
		for _, candidate := range candidates {
			if candidate == "" {
				continue
			}
			tail, err := readTail(candidate)
			if err != nil {
				continue
			}
			readable++
			if strings.Contains(tail, marker) {
				return candidate, nil
			}
		}
		if readable == 0 {
			break
		}
	}
	return "", errors.New("the server's log file is not readable here")
}

func readTail(path string) (string, error) {
	const tail = 256 << 10
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", errors.New("not a regular file")
	}
	from := info.Size() - tail
	if from < 0 {
		from = 0
	}
	content := make([]byte, info.Size()-from)
	n, err := file.ReadAt(content, from)
	if n == 0 && err != nil && info.Size() > 0 {
		return "", err
	}
	return string(content[:n]), nil
}

func probeAMQP(raw string) (string, error) {
	u, err := parse(raw, "amqp", "amqps")
	if err != nil {
		return "", err
	}
	connection, err := amqp.DialConfig(raw, amqp.Config{Dial: amqp.DefaultDial(dialTimeout)})
	if err != nil {
		return "", err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return "", err
	}
	defer channel.Close()
	return u.Host + u.Path, nil
}

func freePorts(count string) (string, error) {
	n, err := strconv.Atoi(count)
	if err != nil || n < 1 {
		return "", fmt.Errorf("not a number of ports: %q", count)
	}
	ports := make([]string, 0, n)
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		defer listener.Close() // all are held until the end, so that no port is named twice
		ports = append(ports, strconv.Itoa(listener.Addr().(*net.TCPAddr).Port))
	}
	return strings.Join(ports, " "), nil
}
