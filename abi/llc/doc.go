// Package llc holds the Link Layer Control messages of RFC 7609 §A.3, which manage the links of a link group, and their
// counterparts of SMC-R v2 as Linux sends them.
//
// Each message decodes and appends in a Dialect chosen by the caller. SMC-R v2 has the same fields under types 0x2N and,
// in place of the length byte and the byte behind it, a 16-bit length in the sender's own byte order. All hosts we speak
// to are little-endian; a big-endian sender is refused by the length check.
package llc
