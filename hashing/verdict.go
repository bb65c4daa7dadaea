package hashing

// Verdict is what a stored hash tells about a message.
type Verdict int

const (
	// Incomparable: the stored hash was made by a scheme that is not known, or that cannot answer.
	Incomparable Verdict = iota
	// Equal: the message has the content that was hashed.
	Equal
	// Different: the message has another content.
	Different
)

// String is the verdict in lower case.
func (v Verdict) String() string {
	switch v {
	case Equal:
		return "equal"
	case Different:
		return "different"
	default:
		return "incomparable"
	}
}
