// Package abi is a folder: what the bytes look like, on the wire and in memory that two processes share. Nothing below it
// does I/O, knows the time, takes a lock or writes a log.
//
//	smc   scalars of RFC 7609, cursors and sequence numbers, the TCP option, dialects
//	clc   CLC messages: on the TCP connection, before anything else
//	llc   LLC messages: on a link, about links and RMBs
//	cdc   the CDC message: on a link, about one connection
//	roce  scalars and packet headers of RoCE v2
//	host  what processes of one host share
//
// Every message has one file and passes the same five tests (internal/golden): captured bytes decode to values written by
// hand; they append to the same bytes; every prefix fails; reserved bits, and only they, are ignored; and the fuzz target,
// which wants Append(Decode(x)) to be a fixed point.
package abi
