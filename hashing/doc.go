// Package hashing decides whether two messages have the same content.
//
// A Hasher makes a short text of a message, which is stored with its inbox entry; a Verifier tells from that
// text whether a redelivered message is Equal, Different or Incomparable. The rules, in the order in which
// they are applied:
//
//  1. What is hashed is the payload. Metadata counts only where Metadata lists it, because brokers and
//     middlewares add to it without bound; a listed name that is absent differs from one that is empty. The
//     UUID does not count: it is the key. CloudEvents hashes an event instead of its encoding, see there;
//     Content hashes what a function makes of the message.
//  2. A payload that is strict JSON (RFC 8259) is hashed in its canonical form: that of RFC 8785 in
//     everything but numbers. Members are ordered by the UTF-16 code units of their names, strings have the
//     fewest escapes, there is no white space, Unicode is not normalised. Any value may stand at the top.
//  3. Numbers are exact decimals. Two spellings have one canonical text exactly if they are the same
//     decimal: 1, 1.0, 1e0 and 10E-1 are one number, -0 is 0, 9007199254740993 is not 9007199254740992. The
//     digits, without zeros at either end, are laid out as ECMAScript's Number::toString does, so that the
//     text is that of RFC 8785 wherever a number is what its float64 prints as. With Numbers(Float64) a
//     number is rounded to a float64 first, as RFC 8785 has it; one that is too large for a float64 stays
//     exact.
//  4. What Exclude lists is left out: a member is as if it were absent, an element of an array keeps its
//     place. It must be valid JSON all the same.
//  5. A payload that is not strict JSON is never repaired: its bytes are hashed as they are, under another
//     class, so that they are equal to no JSON. With Strict it is an error. Not strict are duplicate member names
//     (also if one of them is escaped), lone surrogates, invalid UTF-8, a byte order mark, trailing data, an
//     empty payload, more than 10,000 levels, more than 1 GiB, and a number whose decimal exponent, written
//     with one digit before the point, is beyond +-999,999,999,999,999.
//  6. The digest is SHA-256, or HMAC-SHA-256 with Keyed, over a domain text, the class, the content and the
//     listed metadata, each with its length before it.
//
// The stored text has at most 100 characters:
//
//	v1:<class>:<algorithm>:<scheme>:<digest>
//
// The class is j (JSON), b (bytes), e (CloudEvents) or the name of a Content function. The algorithm is sha256
// or hmac-sha256.<key id>. The scheme is a short digest of the configuration that does not depend on the
// order of options. The digest is in unpadded base64url (RFC 4648, section 5). The form is stable: rows live
// for years.
//
// An unkeyed hash of a payload with little in it (a user id, a yes or no) is reversed by trying all of
// them in seconds: use Keyed where the table must not give that away.
//
// Hashing needs time and memory linear in the payload, but for sorting the members of an object. It imports
// Watermill's message and the standard library only.
package hashing
