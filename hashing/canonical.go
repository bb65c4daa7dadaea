package hashing

import (
	"slices"
	"sort"
)

// endObject closes the object that is p.reorders[object] and whose members are p.members[base:].
func (p *parser) endObject(depth, object, base int, sorted bool) error {
	p.out = append(p.out, '}')
	members := p.members[base:]
	if depth == 1 {
		p.top = append(p.top, members...)
	}
	if !sorted {
		slices.SortFunc(members, func(a, b member) int { return compareUTF16(p.bytes(a.name), p.bytes(b.name)) })
		for i := 1; i < len(members); i++ {
			if string(p.bytes(members[i-1].name)) == string(p.bytes(members[i].name)) {
				return p.fail("duplicate member name in the object that ends here")
			}
		}
		r := &p.reorders[object]
		r.first = len(p.kept)
		p.kept = append(p.kept, members...)
		r.last, r.end = len(p.kept), uint32(len(p.out))
	} else if len(p.reorders) == object+1 {
		p.reorders = p.reorders[:object] // in order, and so is all that it contains
	}
	p.members = p.members[:base]
	return nil
}

// canonical returns the canonical form of the document. It is valid until the next document is read.
func (p *parser) appendCanonical(dst []byte) []byte {
	return p.emit(dst, 0, uint32(len(p.out)), 0)
}

// appendValue appends the canonical form of the part of out that is one value.
func (p *parser) appendValue(dst []byte, start, end uint32) []byte {
	return p.emit(dst, start, end, p.search(start))
}

// search returns the index of the first reorder that does not begin before start.
func (p *parser) search(start uint32) int {
	return sort.Search(len(p.reorders), func(i int) bool { return p.reorders[i].start >= start })
}

// emit appends out[start:end] with the members of its objects in order. The first reorder in there, if any, is
// p.reorders[next].
func (p *parser) emit(dst []byte, start, end uint32, next int) []byte {
	for next < len(p.reorders) && p.reorders[next].start < end {
		r := p.reorders[next]
		if r.last == r.first {
			next++
			continue
		}
		dst = append(dst, p.out[start:r.start]...)
		// Mostly nothing in there is out of order itself, and nothing need be searched for.
		inner := next + 1
		nested := inner < len(p.reorders) && p.reorders[inner].start < r.end
		dst = append(dst, '{')
		isFirst := true
		for _, m := range p.kept[r.first:r.last] {
			if m.excluded {
				continue
			}
			if !isFirst {
				dst = append(dst, ',')
			}
			isFirst = false
			if nested {
				dst = p.emit(dst, m.start, m.end, p.search(m.start))
			} else {
				dst = append(dst, p.out[m.start:m.end]...)
			}
		}
		dst = append(dst, '}')
		start, next = r.end, inner
		if nested {
			next = p.search(r.end)
		}
	}
	return append(dst, p.out[start:end]...)
}
