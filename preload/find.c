/*
 * Looks a function up in the objects behind this library, as dlsym(RTLD_NEXT) does, but without its locks, its search for who
 * asks and its allocations: a program that never uses a socket pays for the names of real.c as well. Knows what every
 * library of the last fifteen years has (DT_GNU_HASH); 0 = not found, or something else stands in the way: ask dlsym.
 */
#include "real.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/auxv.h>

#include "life.h"

struct object {
	const Elf64_Sym *sym;
	const char *str;
	const u16 *version; /* 0 = none; bit 15: not the one to take where no version is asked for */
	const u32 *hash; /* buckets, first symbol, words of the filter, its shift; then the filter, the buckets, the chains */
};

BOOT static int read_object(const struct link_map *m, struct object *o)
{
	*o = (struct object){0};
	for (const Elf64_Dyn *d = m->l_ld; d->d_tag != DT_NULL; d++) {
		/* The loader has added where the object lies, but not to a section that may not be written (-z rodynamic). */
		const void *at = (const void *)(d->d_un.d_ptr < m->l_addr ? m->l_addr + d->d_un.d_ptr : d->d_un.d_ptr);
		if (d->d_tag == DT_SYMTAB)
			o->sym = at;
		else if (d->d_tag == DT_STRTAB)
			o->str = at;
		else if (d->d_tag == DT_VERSYM)
			o->version = at;
		else if (d->d_tag == DT_GNU_HASH)
			o->hash = at;
	}
	return o->sym && o->str && o->hash;
}

BOOT static const Elf64_Sym *look_in(const struct object *o, const char *name, u32 hash)
{
	const u32 buckets = o->hash[0], first = o->hash[1], words = o->hash[2], shift = o->hash[3];
	const u64 *filter = (const u64 *)(o->hash + 4);
	const u32 *bucket = (const u32 *)(filter + words), *chain = bucket + buckets;
	const u64 both = 1ul << hash % 64 | 1ul << (hash >> shift) % 64;

	if ((filter[hash / 64 % words] & both) != both || bucket[hash % buckets] < first)
		return 0;
	for (u32 i = bucket[hash % buckets];; i++) {
		const Elf64_Sym *s = o->sym + i;
		if (!((chain[i - first] ^ hash) >> 1) && !strcmp(o->str + s->st_name, name) && s->st_shndx != SHN_UNDEF &&
		    !(o->version && o->version[i] & 0x8000))
			return s;
		if (chain[i - first] & 1)
			return 0;
	}
}

/* Where the search begins: behind the object that `of` lies in. 0 = nowhere: another libc, which leaves the tables' addresses as they are in the file. */
BOOT const struct link_map *find_behind(const void *of)
{
	struct link_map *m = 0;
	Dl_info info;

	return dladdr1 && dladdr1(of, &info, (void **)&m, RTLD_DL_LINKMAP) && m ? m->l_next : 0;
}

/* *m: where the search begins, and then, where it ended. */
BOOT void *find_next(const struct link_map **m, const char *name)
{
	const u64 vdso = getauxval(AT_SYSINFO_EHDR);
	struct object o;
	u32 hash = 5381;

	for (const char *c = name; *c; c++)
		hash = hash * 33 + (unsigned char)*c;
	for (; *m; *m = (*m)->l_next) {
		if ((*m)->l_addr == vdso)
			continue; /* nobody links with it, and its table may be of the old kind */
		if (!read_object(*m, &o))
			return 0;
		const Elf64_Sym *s = look_in(&o, name, hash);
		if (s)
			return ELF64_ST_TYPE(s->st_info) == STT_FUNC ? (void *)((*m)->l_addr + s->st_value) : 0;
	}
	return 0;
}
