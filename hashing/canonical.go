package hashing

import (
	"cmp"
	"slices"
	"sort"
)

// endObject closes the object that is p.reorders[object] and whose members are p.members[base:].
func (p *parser) endObject(depth, object, base int, sorted bool) error {
	members := p.members[base:]
	if depth == 1 {
		p.top = append(p.top, members...)
	}
	if !sorted {
		r := &p.reorders[object]
		r.first = len(p.kept)
		if !p.keepSorted(members) {
			return p.fail("duplicate member name in the object that ends here")
		}
		r.last, r.end = len(p.kept), uint32(p.position())
	} else if len(p.reorders) == object+1 {
		p.reorders = p.reorders[:object] // in order, and so is all that it contains
	}
	p.members = p.members[:base]
	return nil
}

// sortKey stands for a member while its object is sorted: less to move, and mostly the prefix decides.
type sortKey struct {
	prefix uint64
	member uint32
}

// keepSorted appends the members that are not excluded to p.kept in canonical order, or reports false if two have one name.
func (p *parser) keepSorted(members []member) bool {
	p.order = p.order[:0]
	for i := range members {
		p.order = append(p.order, sortKey{prefix: members[i].prefix, member: uint32(i)})
	}
	slices.SortFunc(p.order, func(a, b sortKey) int {
		if a.prefix != b.prefix {
			return cmp.Compare(a.prefix, b.prefix)
		}
		return p.compareNames(&members[a.member], &members[b.member])
	})
	for i, key := range p.order {
		m := &members[key.member]
		if i > 0 && p.compareNames(&members[p.order[i-1].member], m) == 0 {
			return false
		}
		if !m.excluded {
			p.kept = append(p.kept, part{m.start, m.end})
		}
	}
	return true
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
		for i, m := range p.kept[r.first:r.last] {
			if i > 0 {
				dst = append(dst, ',')
			}
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
