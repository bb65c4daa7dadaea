package pgproxy

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync"
)

// session is one connection of a client with its connection to the server.
type session struct {
	proxy          *Proxy
	client, server net.Conn
	once           sync.Once

	prepared map[string]string // name of a prepared statement -> its text

	mu    sync.Mutex
	armed *Fault // waits for the answer to the statement that was forwarded last
}

// cut closes both connections.
func (s *session) cut() {
	s.once.Do(func() {
		_ = s.client.Close()
		_ = s.server.Close()
	})
}

func (s *session) end() {
	s.cut()
	s.proxy.mu.Lock()
	delete(s.proxy.open, s)
	s.proxy.mu.Unlock()
	s.proxy.sessions.Done()
}

// forwardClient forwards what the client says, message by message.
func (s *session) forwardClient() {
	defer s.end()
	startup, err := readBody(s.client, nil)
	if err != nil {
		return
	}
	if _, err := s.server.Write(startup); err != nil {
		return
	}
	for {
		message, err := readMessage(s.client)
		if err != nil {
			return
		}
		if statement, ok := s.statement(message); ok {
			if fault := s.proxy.run(statement); fault != nil {
				if fault.moment == beforeAnswer {
					s.arm(fault)
				} else if !fault.strike(s) {
					return
				}
			}
		}
		if _, err := s.server.Write(message); err != nil {
			return
		}
	}
}

// forwardServer forwards what the server says and counts its errors.
func (s *session) forwardServer() {
	defer s.end()
	for {
		message, err := readMessage(s.server)
		if err != nil {
			return
		}
		switch message[0] {
		case 'K': // BackendKeyData
			s.proxy.noteBackend(binary.BigEndian.Uint32(message[headerLength:]))
		case 'E': // ErrorResponse
			s.proxy.noteError(serverError(message[headerLength:]))
			fallthrough
		case 'C': // CommandComplete
			if fault := s.arm(nil); fault != nil && !fault.strike(s) {
				return
			}
		}
		if _, err := s.client.Write(message); err != nil {
			return
		}
	}
}

// arm sets the fault that waits for the next answer and returns the one that did.
func (s *session) arm(fault *Fault) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.armed
	s.armed = fault
	return before
}

// statement returns the text of the statement that message runs.
func (s *session) statement(message []byte) (string, bool) {
	body := message[headerLength:]
	switch message[0] {
	case 'Q': // Query
		text, _ := cString(body)
		return text, true
	case 'P': // Parse: name, text
		name, rest := cString(body)
		s.prepared[name], _ = cString(rest)
	case 'B': // Bind: portal, name. Here the server takes the statement's snapshot; Execute follows.
		_, rest := cString(body)
		name, _ := cString(rest)
		return s.prepared[name], true
	}
	return "", false
}

func (p *Proxy) noteBackend(process uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backends = append(p.backends, process)
}

func (p *Proxy) noteError(e ServerError) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.errors = append(p.errors, e)
}

// serverError reads the fields of an ErrorResponse: each a letter and a text.
func serverError(body []byte) ServerError {
	var e ServerError
	for len(body) > 1 {
		field := body[0]
		var text string
		text, body = cString(body[1:])
		switch field {
		case 'C':
			e.SQLState = text
		case 'M':
			e.Message = text
		}
	}
	return e
}

const headerLength = 5 // a type and the length of all but the type

func readMessage(from io.Reader) ([]byte, error) {
	kind := make([]byte, 1)
	if _, err := io.ReadFull(from, kind); err != nil {
		return nil, err
	}
	return readBody(from, kind)
}

// readBody reads a length and as many bytes. The first message of a client is only that.
func readBody(from io.Reader, kind []byte) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(length[:])
	if size < 4 || size > 1<<28 {
		return nil, io.ErrUnexpectedEOF
	}
	message := append(append(kind, length[:]...), make([]byte, size-4)...)
	_, err := io.ReadFull(from, message[len(message)-int(size)+4:])
	return message, err
}

func cString(body []byte) (text string, rest []byte) {
	before, after, _ := bytes.Cut(body, []byte{0})
	return string(before), after
}
