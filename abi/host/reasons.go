// Code generated from hooks/shim.h by go generate. DO NOT EDIT.

package host

const (
	ReasonNone        Reason = 0
	ReasonOff         Reason = 1
	ReasonNoListener  Reason = 2
	ReasonNoClient    Reason = 3
	ReasonUnclaimed   Reason = 4
	ReasonPlainBytes  Reason = 5
	ReasonStagingFull Reason = 6
	ReasonLeftEarly   Reason = 7
	ReasonVersion     Reason = 8
	ReasonRlimitAs    Reason = 9
	ReasonRlimitNproc Reason = 10
	ReasonNoFd        Reason = 11
	ReasonSeccomp     Reason = 12
	ReasonEngine      Reason = 13
	ReasonMemory      Reason = 14
	ReasonFds         Reason = 15
	ReasonDeclined    Reason = 16
	ReasonDeclineSent Reason = 17
	ReasonProtocol    Reason = 18
	ReasonTimeout     Reason = 19
	ReasonSockopt     Reason = 20
	ReasonIpsec       Reason = 21
	ReasonRegistry    Reason = 22
	ReasonRemote      Reason = 23
	ReasonEpollEarly  Reason = 24
	ReasonExec        Reason = 25
	ReasonHaste       Reason = 26
	ReasonRule        Reason = 27
	ReasonRulesBad    Reason = 28
	ReasonNotSmc      Reason = 29
	ReasonHalfOpen    Reason = 30
	ReasonQueueFull   Reason = 31
	ReasonStream      Reason = 32
)

var reasonWords = [...]string{
	0:  "none",
	1:  "off",
	2:  "peer-not-offering",
	3:  "client-not-offering",
	4:  "not-claimed",
	5:  "peer-sent-plain",
	6:  "early-data",
	7:  "left-early",
	8:  "version",
	9:  "rlimit-as",
	10: "rlimit-nproc",
	11: "no-free-fd",
	12: "seccomp",
	13: "engine-not-startable",
	14: "memory-limit",
	15: "fd-limit",
	16: "peer-declined",
	17: "declined",
	18: "protocol-error",
	19: "clc-timeout",
	20: "socket-option",
	21: "ipsec",
	22: "no-registry",
	23: "not-local",
	24: "epoll-before-connect",
	25: "exec",
	26: "short-connections",
	27: "rule",
	28: "bad-rules-file",
	29: "peer-not-smc",
	30: "half-open",
	31: "listen-queue-full",
	32: "standard-stream",
}
