package hashing

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// pattern is a tree of the tokens of all Exclude patterns.
type pattern struct {
	members  map[string]*pattern
	any      *pattern // for the token *
	excluded bool
}

// parsePattern splits an RFC 6901 pointer into its tokens. A token is nil for *.
func parsePattern(text string) ([]*string, error) {
	switch {
	case text == "":
		return nil, fmt.Errorf("exclude pattern %q is the whole payload: every message would be equal", text)
	case !utf8.ValidString(text):
		return nil, fmt.Errorf("exclude pattern %q is not valid UTF-8", text)
	case text[0] != '/':
		return nil, fmt.Errorf("exclude pattern %q must begin with a slash (RFC 6901), for example %q", text, "/"+strings.ReplaceAll(text, ".", "/"))
	}
	var tokens []*string
	for _, token := range strings.Split(text[1:], "/") {
		if token == "*" {
			tokens = append(tokens, nil)
			continue
		}
		if strings.Contains(token, "*") {
			return nil, fmt.Errorf("exclude pattern %q has a * that is not a whole token; write ~2 for the character itself", text)
		}
		plain, err := unescapeToken(token)
		if err != nil {
			return nil, fmt.Errorf("exclude pattern %q: %w", text, err)
		}
		tokens = append(tokens, &plain)
	}
	return tokens, nil
}

func unescapeToken(token string) (string, error) {
	var plain strings.Builder
	for i := 0; i < len(token); i++ {
		if token[i] != '~' {
			plain.WriteByte(token[i])
			continue
		}
		i++
		if i == len(token) {
			return "", fmt.Errorf("a ~ at the end of a token; write ~0 for the character itself")
		}
		switch token[i] {
		case '0':
			plain.WriteByte('~')
		case '1':
			plain.WriteByte('/')
		case '2':
			plain.WriteByte('*')
		default:
			return "", fmt.Errorf("~%c is none of ~0 (~), ~1 (/) and ~2 (*)", token[i])
		}
	}
	return plain.String(), nil
}

func newPattern(all [][]*string) *pattern {
	if len(all) == 0 {
		return nil
	}
	root := &pattern{}
	for _, tokens := range all {
		at := root
		for _, token := range tokens {
			at = at.grow(token)
		}
		at.excluded = true
	}
	return root
}

func (p *pattern) grow(token *string) *pattern {
	if token == nil {
		if p.any == nil {
			p.any = &pattern{}
		}
		return p.any
	}
	if p.members == nil {
		p.members = map[string]*pattern{}
	}
	if p.members[*token] == nil {
		p.members[*token] = &pattern{}
	}
	return p.members[*token]
}

// covers tells whether every path that tokens match lies at or below one that p's tokens match.
func covers(p, tokens []*string) bool {
	if len(p) > len(tokens) {
		return false
	}
	for i, token := range p {
		if token != nil && (tokens[i] == nil || *tokens[i] != *token) {
			return false
		}
	}
	return true
}
