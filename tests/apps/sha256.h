/* SHA-256 (FIPS 180-4) of one buffer. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t sha_k[64], sha_start[8];

/* The constants: the first 32 bits of the fractions of the cube and square roots of the first primes. */
static void sha_constants(void)
{
	for (int n = 0, p = 2; n < 64; p++) {
		int prime = 1;
		for (int d = 2; d * d <= p; d++)
			prime &= p % d != 0;
		if (!prime)
			continue;
		long double cube = cbrtl(p), square = sqrtl(p);
		sha_k[n] = (uint32_t)(uint64_t)((cube - floorl(cube)) * 4294967296.0L);
		if (n < 8)
			sha_start[n] = (uint32_t)(uint64_t)((square - floorl(square)) * 4294967296.0L);
		n++;
	}
}

static inline uint32_t sha_rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void sha_block(uint32_t h[8], const unsigned char *p)
{
	uint32_t w[64], s[8];
	for (int i = 0; i < 16; i++)
		w[i] = (uint32_t)p[4 * i] << 24 | p[4 * i + 1] << 16 | p[4 * i + 2] << 8 | p[4 * i + 3];
	for (int i = 16; i < 64; i++) {
		uint32_t a = w[i - 15], b = w[i - 2];
		w[i] = w[i - 16] + w[i - 7] + (sha_rotate(a, 7) ^ sha_rotate(a, 18) ^ a >> 3) + (sha_rotate(b, 17) ^ sha_rotate(b, 19) ^ b >> 10);
	}
	memcpy(s, h, sizeof s);
	for (int i = 0; i < 64; i++) {
		uint32_t e = s[4], a = s[0];
		uint32_t t1 = s[7] + (sha_rotate(e, 6) ^ sha_rotate(e, 11) ^ sha_rotate(e, 25)) + ((e & s[5]) ^ (~e & s[6])) + sha_k[i] + w[i];
		uint32_t t2 = (sha_rotate(a, 2) ^ sha_rotate(a, 13) ^ sha_rotate(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
		memmove(s + 1, s, 7 * sizeof *s);
		s[4] += t1;
		s[0] = t1 + t2;
	}
	for (int i = 0; i < 8; i++)
		h[i] += s[i];
}

/* Writes the digest as 64 hexadecimal digits. */
static void sha256(const unsigned char *data, size_t n, char hex[65])
{
	unsigned char tail[128] = { 0 };
	uint32_t h[8];
	size_t at = 0;
	if (!sha_k[0])
		sha_constants();
	memcpy(h, sha_start, sizeof h);
	for (; n - at >= 64; at += 64)
		sha_block(h, data + at);
	memcpy(tail, data + at, n - at);
	tail[n - at] = 0x80;
	size_t length = n - at < 56 ? 64 : 128;
	for (int i = 0; i < 8; i++)
		tail[length - 1 - i] = (uint64_t)n * 8 >> 8 * i;
	for (size_t i = 0; i < length; i += 64)
		sha_block(h, tail + i);
	for (int i = 0; i < 8; i++)
		snprintf(hex + 8 * i, 9, "%08x", h[i]);
}
