#include "textflag.h"

// struct runtime of preload/life.h
DATA smcr_runtime<>+0(SB)/8, $_rt0_amd64_linux_lib(SB)
DATA smcr_runtime<>+8(SB)/8, $runtime·sigtable(SB)
DATA smcr_runtime<>+16(SB)/8, $runtime·epfd(SB)
DATA smcr_runtime<>+24(SB)/8, $runtime·netpollEventFd(SB)
DATA smcr_runtime<>+32(SB)/8, $runtime·netpollInited(SB)
DATA smcr_runtime<>+40(SB)/8, $runtime·godebugDefault(SB)
GLOBL smcr_runtime<>(SB), NOPTR, $48

// smcr_rt0() is called with the C ABI.
TEXT smcr_rt0(SB),NOSPLIT|NOFRAME,$0
	LEAQ smcr_runtime<>(SB), AX
	RET
