// Package clc holds the Connection Layer Control messages of RFC 7609 §A.2, by which the two ends of a fresh TCP connection
// agree on SMC-R, and their longer forms of SMC-R v2.
//
// Peek says from the first eight bytes how long a message is. Every Decode wants the whole message and checks length, type
// and both eye catchers before the fields. Its errors fall into the two classes of RFC 7609 §C.6: *ProtocolError (not a CLC
// message, the TCP connection ends) and *EnumError (a reserved value in a good message, Decline and go on with TCP); after
// an *EnumError all fields are filled in.
package clc
