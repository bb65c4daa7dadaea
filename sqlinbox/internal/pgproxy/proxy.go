package pgproxy

import (
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Proxy forwards connections to a PostgreSQL server. It is safe for concurrent use.
type Proxy struct {
	dsn      string
	server   string
	listener net.Listener
	sessions sync.WaitGroup

	mu         sync.Mutex
	closed     bool
	open       map[*session]bool
	errors     []ServerError
	statements []string
	backends   []uint32
	faults     []*Fault
}

// Start returns a proxy to the server of dsn, a URL. It ends with the test.
func Start(t testing.TB, dsn string) *Proxy {
	t.Helper()
	target, err := url.Parse(dsn)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)

	p := &Proxy{server: serverAddress(target), listener: listener, open: map[*session]bool{}}
	target.Host = listener.Addr().String()
	query := target.Query()
	query.Del("host")
	query.Del("port")
	query.Set("sslmode", "disable") // the proxy reads what is said
	target.RawQuery = query.Encode()
	p.dsn = target.String()

	p.sessions.Add(1)
	go p.accept()
	t.Cleanup(p.close)
	return p
}

func serverAddress(target *url.URL) string {
	host, port := target.Hostname(), target.Port()
	if host == "" {
		host = "127.0.0.1"
	}
	if port == "" {
		port = "5432"
	}
	return net.JoinHostPort(host, port)
}

// DSN is the URL of the same database by way of the proxy.
func (p *Proxy) DSN() string { return p.dsn }

// ServerError is one ErrorResponse of the server.
type ServerError struct {
	SQLState string
	Message  string
}

// Errors are the errors that the server has reported, in order. Each of them is an ERROR or FATAL line in the
// server's log.
func (p *Proxy) Errors() []ServerError {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.errors)
}

// Statements are the texts of the statements that clients have run, in order.
func (p *Proxy) Statements() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.statements)
}

// Backends are the process numbers of the server's sessions, which its log has in each line.
func (p *Proxy) Backends() []uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.backends)
}

func (p *Proxy) accept() {
	defer p.sessions.Done()
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		s := &session{proxy: p, client: client, server: server, prepared: map[string]string{}}
		if !p.add(s) {
			s.cut()
			return
		}
		go s.forwardClient()
		go s.forwardServer()
	}
}

// add counts the two goroutines of s, unless the proxy is closed.
func (p *Proxy) add(s *session) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.sessions.Add(2)
	p.open[s] = true
	return true
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for _, f := range p.faults {
		f.Release()
	}
	for s := range p.open {
		s.cut()
	}
	p.mu.Unlock()
	p.sessions.Wait()
}
