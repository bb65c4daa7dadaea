package hashing

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Explain returns the text that is hashed of msg, its parts on lines of their own, for a person who wants to know
// why two hashes differ. It holds the payload: it does not belong into a log.
func (h *Hasher) Explain(msg *message.Message) (string, error) {
	c := h.pool.Get().(*content)
	defer h.release(c)
	if err := h.write(c, msg); err != nil {
		return "", err
	}
	return string(bytes.Join(c.parts(), []byte("\n"))), nil
}

// maxDiff is how many differences Diff looks for.
const maxDiff = 20

// Diff returns where the contents of two messages differ, as far as it is hashed, and nothing if they are equal:
// JSON pointers into the payload (or the data of a CloudEvent), "metadata <name>", "attribute <name>". The pointer ""
// is the whole payload. It returns at most 20, in the order of the canonical form, and never a value.
func (h *Hasher) Diff(a, b *message.Message) ([]string, error) {
	first, second := h.pool.Get().(*content), h.pool.Get().(*content)
	defer h.release(first)
	defer h.release(second)
	for _, side := range []struct {
		content *content
		msg     *message.Message
	}{{first, a}, {second, b}} {
		if err := h.write(side.content, side.msg); err != nil {
			return nil, err
		}
	}
	if bytes.Equal(first.text, second.text) {
		return nil, nil
	}

	d := &differences{}
	d.named(first.namedParts(), second.namedParts())
	payloadA, payloadB := first.hashedPayload(), second.hashedPayload()
	if !bytes.Equal(payloadA, payloadB) {
		valueA, okA := decode(payloadA)
		valueB, okB := decode(payloadB)
		if okA && okB {
			d.values("", valueA, valueB)
		} else {
			d.add("")
		}
	}
	if len(d.found) == 0 {
		d.add("") // JSON against the same text as bytes, or another media type
	}
	return d.found, nil
}

// parts takes the hashed text apart.
func (c *content) parts() [][]byte {
	var parts [][]byte
	for rest := c.text; len(rest) >= 8; {
		length := binary.BigEndian.Uint64(rest)
		parts = append(parts, rest[8:8+length])
		rest = rest[8+length:]
	}
	return parts
}

// namedParts are the metadata and attributes with their state.
func (c *content) namedParts() map[string]string {
	named := map[string]string{}
	parts := c.parts()
	for i := 0; i+2 < len(parts); i++ {
		kind, name, state := string(parts[i]), string(parts[i+1]), string(parts[i+2])
		if kind != "metadata" && kind != "attribute" || state != "present" && state != "absent" {
			continue
		}
		if state == "present" && i+3 < len(parts) {
			state += string(parts[i+3])
			i++
		}
		named[kind+" "+name] = state
		i += 2
	}
	return named
}

func (c *content) hashedPayload() []byte {
	return c.text[c.payload[0]:c.payload[1]]
}

func decode(canonical []byte) (any, bool) {
	decoder := json.NewDecoder(bytes.NewReader(canonical))
	decoder.UseNumber()
	var value any
	err := decoder.Decode(&value)
	return value, err == nil && !decoder.More()
}

type differences struct {
	found []string
}

func (d *differences) add(where string) {
	if len(d.found) < maxDiff {
		d.found = append(d.found, where)
	}
}

func (d *differences) named(a, b map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(a)) {
		if other, ok := b[name]; ok && other != a[name] {
			d.add(name)
		}
	}
}

func (d *differences) values(at string, a, b any) {
	if len(d.found) >= maxDiff {
		return
	}
	switch a := a.(type) {
	case map[string]any:
		if b, ok := b.(map[string]any); ok {
			d.objects(at, a, b)
			return
		}
	case []any:
		if b, ok := b.([]any); ok {
			d.arrays(at, a, b)
			return
		}
	default:
		if fmt.Sprintf("%T %v", a, a) == fmt.Sprintf("%T %v", b, b) {
			return
		}
	}
	d.add(at)
}

func (d *differences) objects(at string, a, b map[string]any) {
	names := map[string]bool{}
	for name := range a {
		names[name] = true
	}
	for name := range b {
		names[name] = true
	}
	sorted := slices.SortedFunc(maps.Keys(names), func(x, y string) int { return compareUTF16([]byte(x), []byte(y)) })
	for _, name := range sorted {
		pointer := at + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
		valueA, inA := a[name]
		valueB, inB := b[name]
		if inA != inB {
			d.add(pointer)
			continue
		}
		d.values(pointer, valueA, valueB)
	}
}

func (d *differences) arrays(at string, a, b []any) {
	for i := range max(len(a), len(b)) {
		pointer := at + "/" + strconv.Itoa(i)
		if i >= len(a) || i >= len(b) {
			d.add(pointer)
			return
		}
		d.values(pointer, a[i], b[i])
	}
}
