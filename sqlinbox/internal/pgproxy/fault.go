package pgproxy

import (
	"strings"
	"sync"
)

// Fault is something that happens once, to the first statement that contains a text.
type Fault struct {
	text   string
	moment moment
	cut    bool

	reached  chan struct{}
	released chan struct{}
	release  sync.Once
}

type moment int

const (
	beforeStatement moment = iota
	beforeAnswer
)

// CutBefore closes the connection instead of forwarding the statement: the server never hears of it.
func (p *Proxy) CutBefore(text string) *Fault {
	return p.arm(&Fault{text: text, moment: beforeStatement, cut: true})
}

// CutAfter closes the connection after the server has run the statement, so that the client never hears of
// it.
func (p *Proxy) CutAfter(text string) *Fault {
	return p.arm(&Fault{text: text, moment: beforeAnswer, cut: true})
}

// HoldBefore keeps the statement back from the server until Release.
func (p *Proxy) HoldBefore(text string) *Fault {
	return p.arm(&Fault{text: text, moment: beforeStatement})
}

// HoldAnswer keeps the server's answer to the statement back from the client until Release.
func (p *Proxy) HoldAnswer(text string) *Fault {
	return p.arm(&Fault{text: text, moment: beforeAnswer})
}

// Reached is closed when the fault has happened.
func (f *Fault) Reached() <-chan struct{} { return f.reached }

// Release ends a hold.
func (f *Fault) Release() { f.release.Do(func() { close(f.released) }) }

func (p *Proxy) arm(f *Fault) *Fault {
	f.reached, f.released = make(chan struct{}), make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
	return f
}

// run notes that a statement is about to be forwarded and takes the fault that waits for it, if any.
func (p *Proxy) run(statement string) *Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.statements = append(p.statements, statement)
	for _, f := range p.faults {
		if f.text != "" && strings.Contains(statement, f.text) {
			f.text = "" // once
			return f
		}
	}
	return nil
}

// strike lets the fault happen to s and tells whether the connection is still there.
func (f *Fault) strike(s *session) bool {
	if f.cut {
		s.cut()
		close(f.reached)
		return false
	}
	close(f.reached)
	<-f.released
	return true
}
