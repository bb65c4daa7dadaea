package hashing

import (
	"bytes"
	"fmt"
	"strconv"
)

const (
	maxDepth = 10_000
	maxSize  = 1 << 30
	// maxCanonical is what a uint32 can address; numbers can be longer in canonical form than they were.
	maxCanonical = 1<<32 - 1
)

// NotStrictJSONError says where and why a payload is not strict JSON. It never holds payload text.
type NotStrictJSONError struct {
	// Offset is that of the byte at which it was seen, from 0.
	Offset int
	Reason string
}

// Error names the offset and the reason.
func (e *NotStrictJSONError) Error() string {
	return fmt.Sprintf("not strict JSON at byte %d: %s", e.Offset, e.Reason)
}

// span is a part of the source or, for a name with escapes, of the parser's own texts.
type span struct {
	start, end uint32
	own        bool
}

// member is a member of an object that is being read, or that was found out of order.
type member struct {
	prefix   uint64 // of the name, see sortPrefix
	name     span   // without quotes and escapes
	start    uint32 // of its canonical name in out
	value    uint32 // of its canonical value in out
	end      uint32 // of its canonical value in out
	excluded bool
}

// part is a member as it stands in out, from its name on.
type part struct{ start, end uint32 }

// reorder is an object whose members stand in out in another order than the canonical one. Its members, in
// canonical order, are kept[first:last]. One with no members stands in the list only for what it contains.
type reorder struct {
	start, end  uint32
	first, last int
}

// parser reads one document at a time. It writes canonical texts into out in the order of the document, and notes
// which objects are out of order: so what is in order costs no more than its text, and what is not is moved once,
// however deep it lies. Its memory is used again for the next document.
type parser struct {
	source []byte
	at     int
	// from is where the part of source begins that is canonical as it stands, up to at, and not yet in out:
	// long parts cost less to copy than many short ones.
	from     int
	out      []byte
	own      []byte     // names that have escapes, without them
	members  []member   // of the objects that are open
	kept     []part     // the members of the objects that are out of order
	order    []sortKey  // of the members of the object that is being sorted
	reorders []reorder  // by start; what contains comes before what is contained
	active   []*pattern // that lead to the values that are open
	top      []member   // of the object at the top, if it is one

	numbers NumberMode
	// belowData makes patterns begin at the member "data" of the document and not at its top.
	belowData bool
}

// parse reads the whole document.
func (p *parser) parse(source []byte, patterns *pattern, belowData bool) error {
	p.source, p.at, p.from, p.belowData = source, 0, 0, belowData
	p.out, p.own, p.members, p.kept = p.out[:0], p.own[:0], p.members[:0], p.kept[:0]
	p.reorders, p.active, p.top = p.reorders[:0], p.active[:0], p.top[:0]
	if len(source) > maxSize {
		return p.fail("larger than 1 GiB")
	}
	if bytes.HasPrefix(source, []byte("\ufeff")) {
		return p.fail("byte order mark")
	}
	if patterns != nil && !belowData {
		p.active = append(p.active, patterns)
	}
	p.skipSpace()
	if err := p.value(0, 0, len(p.active), patterns); err != nil {
		return err
	}
	p.flush()
	p.skipSpace()
	if p.at < len(p.source) {
		return p.fail("data after the value")
	}
	if uint64(len(p.out)) > maxCanonical {
		return p.fail("canonical form larger than 4 GiB")
	}
	return nil
}

func (p *parser) fail(reason string) error {
	return &NotStrictJSONError{Offset: p.at, Reason: reason}
}

func (p *parser) skipSpace() {
	if p.at < len(p.source) && p.source[p.at] > ' ' {
		return // inlined, for there is mostly none
	}
	p.skipSpaces()
}

func (p *parser) skipSpaces() {
	p.flush()
	defer p.drop()
	for p.at < len(p.source) {
		switch p.source[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

// flush writes what is pending into out.
func (p *parser) flush() {
	p.out = append(p.out, p.source[p.from:p.at]...)
	p.from = p.at
}

// drop leaves out of the canonical text what lies between the last flush and here.
func (p *parser) drop() { p.from = p.at }

// position is how long the canonical text is so far.
func (p *parser) position() int { return len(p.out) + p.at - p.from }

// truncate takes off the canonical text what is behind the position.
func (p *parser) truncate(position int) {
	p.flush()
	p.out = p.out[:position]
}

func (p *parser) bytes(s span) []byte {
	if s.own {
		return p.own[s.start:s.end]
	}
	return p.source[s.start:s.end]
}

// value reads a value on a level. The patterns that lead to it are p.active[lo:hi].
func (p *parser) value(depth, lo, hi int, patterns *pattern) error {
	switch p.peek() {
	case '{':
		return p.object(depth+1, lo, hi, patterns)
	case '[':
		return p.array(depth+1, lo, hi, patterns)
	case '"':
		_, err := p.text(false)
		return err
	case 't':
		return p.literal("true")
	case 'f':
		return p.literal("false")
	case 'n':
		return p.literal("null")
	default:
		return p.number()
	}
}

func (p *parser) literal(want string) error {
	end := p.at + len(want)
	if end > len(p.source) || string(p.source[p.at:end]) != want {
		return p.fail("not a JSON value")
	}
	p.at = end
	return nil
}

func (p *parser) peek() byte {
	if p.at < len(p.source) {
		return p.source[p.at]
	}
	return 0
}

func (p *parser) array(depth, lo, hi int, patterns *pattern) error {
	if depth > maxDepth {
		return p.fail("deeper than 10,000 levels")
	}
	p.at++
	p.skipSpace()
	if p.peek() == ']' {
		p.at++
		return nil
	}
	for index := 0; ; index++ {
		elementLo, elementHi, excluded := lo, lo, false
		if hi > lo {
			var digits [20]byte
			elementLo, elementHi, excluded = p.descend(lo, hi, strconv.AppendInt(digits[:0], int64(index), 10))
		}
		start, reorders, kept := p.position(), len(p.reorders), len(p.kept)
		if err := p.value(depth, elementLo, elementHi, patterns); err != nil {
			return err
		}
		p.active = p.active[:hi]
		if excluded {
			// An excluded element keeps its place.
			p.truncate(start)
			p.out, p.reorders, p.kept = append(p.out, "null"...), p.reorders[:reorders], p.kept[:kept]
		}

		p.skipSpace()
		switch p.peek() {
		case ',':
			p.at++
			p.skipSpace()
		case ']':
			p.at++
			return nil
		default:
			return p.fail("neither a comma nor the end of an array")
		}
	}
}

func (p *parser) object(depth, lo, hi int, patterns *pattern) error {
	if depth > maxDepth {
		return p.fail("deeper than 10,000 levels")
	}
	object, base, sorted, isEmpty := len(p.reorders), len(p.members), true, true
	p.reorders = append(p.reorders, reorder{start: uint32(p.position())})
	p.at++
	p.skipSpace()
	if p.peek() == '}' {
		p.at++
		return p.endObject(depth, object, base, sorted)
	}
	start := p.position() // of a member, with the comma before it
	for {
		if p.peek() != '"' {
			return p.fail("a member's name is missing")
		}
		nameAt := p.at
		m := member{start: uint32(p.position())}
		name, err := p.text(true)
		if err != nil {
			return err
		}
		m.name, m.prefix = name, sortPrefix(p.bytes(name))
		if sorted && len(p.members) > base {
			switch order := p.compareNames(&p.members[len(p.members)-1], &m); {
			case order == 0:
				return &NotStrictJSONError{Offset: nameAt, Reason: "duplicate member name"}
			case order > 0:
				sorted = false
			}
		}
		p.skipSpace()
		if p.peek() != ':' {
			return p.fail("no colon after a member's name")
		}
		p.at++
		p.skipSpace()

		memberLo, memberHi := lo, lo
		switch {
		case hi > lo:
			memberLo, memberHi, m.excluded = p.descend(lo, hi, p.bytes(name))
		case p.belowData && depth == 1 && patterns != nil && string(p.bytes(name)) == "data":
			memberLo = len(p.active)
			p.active = append(p.active, patterns)
			memberHi = len(p.active)
		}
		reorders, kept := len(p.reorders), len(p.kept)
		m.value = uint32(p.position())
		if err := p.value(depth, memberLo, memberHi, patterns); err != nil {
			return err
		}
		p.active = p.active[:hi]
		m.end = uint32(p.position())
		if m.excluded {
			p.truncate(start)
			p.reorders, p.kept = p.reorders[:reorders], p.kept[:kept]
		} else {
			isEmpty = false
		}
		p.members = append(p.members, m)

		p.skipSpace()
		switch p.peek() {
		case ',':
			start = p.position()
			p.at++
			if isEmpty {
				p.truncate(start)
			}
			p.skipSpace()
		case '}':
			p.at++
			return p.endObject(depth, object, base, sorted)
		default:
			return p.fail("neither a comma nor the end of an object")
		}
	}
}

// descend appends the patterns that lead on to the child with this name.
func (p *parser) descend(lo, hi int, name []byte) (childLo, childHi int, excluded bool) {
	childLo = len(p.active)
	for _, at := range p.active[lo:hi] {
		if next := at.members[string(name)]; next != nil {
			p.active = append(p.active, next)
			excluded = excluded || next.excluded
		}
		if at.any != nil {
			p.active = append(p.active, at.any)
			excluded = excluded || at.any.excluded
		}
	}
	return childLo, len(p.active), excluded
}
