// Package shm is the verbs provider for two processes on one host. A device is an AF_UNIX datagram socket bound to an
// abstract name of 16 random bytes, which is its GID. SENDs are datagrams. Memory is a sealed memfd; registering it
// gives it an RKey and an address nobody can guess, exporting it sends the descriptor to the peer's socket, and the
// peer maps it: then a store is the RDMA write.
//
// # Datagrams
//
// u32 type, u32 length of the body, both little-endian, then the body. Types 1 and 2 belong to the owner of the socket,
// who gets every datagram whose type is not one of ours.
//
//	3 SEND    u32 destination QPN, u32 source QPN, u32 PSN, u32 0, message
//	4 EXPORT  u32 destination QPN, u32 source QPN, u32 RKey, u32 0, u64 address, u64 length; with one descriptor
//	5 GONE    u32 destination QPN, u32 source QPN: the source queue pair exists no more
//
// # What is believed
//
// Anybody on the host can send to the socket. The kernel vouches for the sender's name; a datagram counts only if
// that name and both QPNs are those of a connected queue pair (an EXPORT may come a little before the CLC message
// that connects it, and is kept until then). An exported descriptor is mapped only when the owner of the queue pair
// asks for its RKey and address, which the CLC exchange told over TCP; and only if it is a sealed memfd of the
// announced size, so that nobody can cut it short under the mapping.
package shm
