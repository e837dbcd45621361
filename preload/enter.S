/*
 * Calls that C cannot wrap. vfork returns twice on the caller's stack: nothing of ours may lie on it when libc's vfork runs,
 * so the preparation is a call and the rest a jump. syscall(2) with clone, fork or vfork likewise.
 */
#include <sys/syscall.h>

	.text
	.hidden smcr_real, h_syscall, life_before_vfork, life_before_clone, real_find_entered

/* Calls \func with the first six argument registers preserved; the stack is aligned for C inside. */
.macro CALL_KEEPING func
	.cfi_startproc
	pushq %rdi
	pushq %rsi
	pushq %rdx
	pushq %rcx
	pushq %r8
	pushq %r9
	subq $8, %rsp
	.cfi_adjust_cfa_offset 56
	call \func
	addq $8, %rsp
	popq %r9
	popq %r8
	popq %rcx
	popq %rdx
	popq %rsi
	popq %rdi
	.cfi_adjust_cfa_offset -56
	.cfi_endproc
.endm

.macro FUNCTION name, visibility
	.globl \name
	.\visibility \name
	.type \name, @function
	.p2align 4
\name:
	endbr64
.endm
#define END(name) .size name, . - name

	.globl vfork, __vfork
	.type vfork, @function
	.set __vfork, vfork
	.type __vfork, @function
	.p2align 4
vfork:
	endbr64
	CALL_KEEPING life_before_vfork
	jmp *8+smcr_real(%rip)
END(vfork)

	.globl syscall
	.type syscall, @function
	.p2align 4
syscall:
	endbr64
	cmpq $__NR_clone3, %rdi
	je 1f
	leaq -__NR_clone(%rdi), %rax
	cmpq $__NR_vfork-__NR_clone, %rax
	ja h_syscall
1:	CALL_KEEPING life_before_clone
	jmp *smcr_real(%rip)
END(syscall)

FUNCTION stub_vfork, hidden
	CALL_KEEPING real_find_entered
	jmp *8+smcr_real(%rip)
END(stub_vfork)

FUNCTION stub_syscall, hidden
	CALL_KEEPING real_find_entered
	jmp *smcr_real(%rip)
END(stub_syscall)

	.section .note.GNU-stack,"",@progbits
