// Package roce holds the scalars and the packet headers of RDMA over Converged Ethernet: what the bytes look like, nothing
// about how they travel. The scalars (QPN, PSN, GID, MAC, MTU, RKey, VAddr) also occur in SMC-R messages; the headers
// (BTH, RETH, AETH) and the ICRC are for the user-space RC endpoint only.
package roce
