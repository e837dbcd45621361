// Package smc holds the scalars that all messages of RFC 7609 share: peer ID, alert token, RMBE cursors and their arithmetic,
// the CDC sequence number, the TCP option, and the dialect that a peer speaks. No message lives here; see clc, llc and cdc.
package smc
