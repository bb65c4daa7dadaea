package hashing

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Trust says what the hash of a retired scheme proves about today's.
type Trust int

const (
	// Derived: from the two configurations. NewVerifier refuses it where it cannot be derived.
	Derived Trust = iota
	// OnlyEqual: the retired scheme hashed more than today's. What it finds equal is equal today; what it finds
	// different may be equal.
	OnlyEqual
	// OnlyDifferent: the retired scheme hashed less than today's. What it finds different is different today.
	OnlyDifferent
	// Both: the retired scheme draws the same distinctions, with another key or in another form.
	Both
)

// Retired is a scheme by which stored hashes were made and new ones are not.
type Retired struct {
	Hasher *Hasher
	Trust  Trust
}

// Verifier makes hashes by the current scheme and compares with those of retired ones. It is safe for concurrent
// use.
type Verifier struct {
	current *Hasher
	retired []Retired
}

// NewVerifier returns a Verifier. Deploy a change of what is hashed with the former hasher as a retired one
// for as long as entries made by it are kept; without it their duplicates are Incomparable.
//
// It returns an error for a nil hasher, and for a Trust that cannot be derived or is more than can be true.
func NewVerifier(current *Hasher, retired ...Retired) (*Verifier, error) {
	if current == nil {
		return nil, errors.New("current hasher is nil")
	}
	v := &Verifier{current: current}
	var problems []error
	for i, r := range retired {
		if r.Hasher == nil {
			problems = append(problems, fmt.Errorf("retired hasher %d is nil", i+1))
			continue
		}
		derived, ok := derive(r.Hasher.config, current.config)
		switch {
		case r.Trust < Derived || r.Trust > Both:
			problems = append(problems, fmt.Errorf("retired hasher %d: unknown trust %d", i+1, r.Trust))
		case r.Trust == Derived && !ok:
			problems = append(problems, fmt.Errorf("retired hasher %d: what it proves cannot be derived from the options; state its Trust", i+1))
		case r.Trust == Derived:
			r.Trust = derived
		case ok && derived != Both && r.Trust != derived:
			problems = append(problems, fmt.Errorf("retired hasher %d: its options prove less than the stated Trust", i+1))
		}
		v.retired = append(v.retired, r)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("invalid verifier: %w", err)
	}
	return v, nil
}

// Hash returns the stored text by the current scheme; see Hasher.Hash.
func (v *Verifier) Hash(msg *message.Message) (string, error) {
	return v.current.Hash(msg)
}

// Compare tells whether msg has the content of which stored was made. A text that cannot be read, is of a
// later version, or of a scheme or key that this Verifier does not have, is Incomparable.
//
// It returns an error when the current scheme cannot hash msg; the verdict is then Incomparable.
func (v *Verifier) Compare(stored string, msg *message.Message) (Verdict, error) {
	text, ok := parseStored(stored)
	if !ok {
		return Incomparable, nil
	}
	if v.current.made(text) {
		hash, err := v.current.Hash(msg)
		if err != nil {
			return Incomparable, err
		}
		return verdict(stored == hash, Both), nil
	}
	for _, r := range v.retired {
		if !r.Hasher.made(text) {
			continue
		}
		hash, err := r.Hasher.Hash(msg)
		if err != nil {
			return Incomparable, nil // the retired scheme cannot answer
		}
		return verdict(stored == hash, r.Trust), nil
	}
	return Incomparable, nil
}

func (h *Hasher) made(text storedText) bool {
	return text.scheme == h.scheme && text.algorithm == h.config.algorithm()
}

func verdict(isSame bool, trust Trust) Verdict {
	switch {
	case isSame && trust != OnlyDifferent:
		return Equal
	case !isSame && trust != OnlyEqual:
		return Different
	default:
		return Incomparable
	}
}

// derive compares what two configurations hash. It reports false if neither hashes all that the other does.
func derive(retired, current config) (Trust, bool) {
	if retired.cloudEvents != current.cloudEvents || retired.contentName != current.contentName {
		return Derived, false
	}
	hashesMore := coversAll(current.exclude, retired.exclude) &&
		containsAll(retired.metadata, current.metadata) &&
		containsAll(retired.attributes, current.attributes) &&
		(retired.numbers == Exact || current.numbers == Float64)
	hashesLess := coversAll(retired.exclude, current.exclude) &&
		containsAll(current.metadata, retired.metadata) &&
		containsAll(current.attributes, retired.attributes) &&
		(current.numbers == Exact || retired.numbers == Float64)
	switch {
	case hashesMore && hashesLess:
		return Both, true
	case hashesMore:
		return OnlyEqual, true
	case hashesLess:
		return OnlyDifferent, true
	default:
		return Derived, false
	}
}

// coversAll tells whether each of patterns lies at or below one of by.
func coversAll(by, patterns [][]*string) bool {
	for _, tokens := range patterns {
		covered := false
		for _, p := range by {
			covered = covered || covers(p, tokens)
		}
		if !covered {
			return false
		}
	}
	return true
}

func containsAll(all, some []string) bool {
	has := map[string]bool{}
	for _, item := range all {
		has[item] = true
	}
	for _, item := range some {
		if !has[item] {
			return false
		}
	}
	return true
}
