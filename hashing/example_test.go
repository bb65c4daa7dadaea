package hashing_test

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-inbox/watermill-inbox/hashing"
)

func ExampleVerifier_Compare() {
	hasher, err := hashing.New(hashing.Exclude("/sent_at"))
	if err != nil {
		panic(err)
	}
	verifier, err := hashing.NewVerifier(hasher)
	if err != nil {
		panic(err)
	}
	stored, err := verifier.Hash(message.NewMessage("1", []byte(`{"order": "o-1", "total": 10.50, "sent_at": "09:30"}`)))
	if err != nil {
		panic(err)
	}

	for _, payload := range []string{
		`{"sent_at": "09:31", "total": 10.5, "order": "o-1"}`,
		`{"order": "o-1", "total": 10.51, "sent_at": "09:30"}`,
	} {
		verdict, err := verifier.Compare(stored, message.NewMessage("1", []byte(payload)))
		fmt.Println(verdict, err)
	}
	// Output:
	// equal <nil>
	// different <nil>
}

func ExampleNewVerifier_retired() {
	old, err := hashing.New()
	if err != nil {
		panic(err)
	}
	current, err := hashing.New(hashing.Exclude("/sent_at"))
	if err != nil {
		panic(err)
	}
	verifier, err := hashing.NewVerifier(current, hashing.Retired{Hasher: old})
	if err != nil {
		panic(err)
	}
	stored, err := old.Hash(message.NewMessage("1", []byte(`{"order":"o-1","sent_at":"09:30"}`)))
	if err != nil {
		panic(err)
	}

	// The old scheme hashed more: what it finds equal is equal, what it finds different may be sent_at alone.
	for _, payload := range []string{`{"order":"o-1","sent_at":"09:30"}`, `{"order":"o-1","sent_at":"09:31"}`} {
		verdict, err := verifier.Compare(stored, message.NewMessage("1", []byte(payload)))
		fmt.Println(verdict, err)
	}
	// Output:
	// equal <nil>
	// incomparable <nil>
}

func ExampleHasher_Diff() {
	hasher, err := hashing.New()
	if err != nil {
		panic(err)
	}
	a := message.NewMessage("1", []byte(`{"order": "o-1", "lines": [{"sku": "a", "quantity": 1}]}`))
	b := message.NewMessage("1", []byte(`{"order": "o-1", "lines": [{"sku": "a", "quantity": 2}]}`))
	differences, err := hasher.Diff(a, b)
	fmt.Println(differences, err)
	// Output: [/lines/0/quantity] <nil>
}
