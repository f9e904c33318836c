/* bcryptprimitives.dll for Wine 8, which has none: Go's runtime takes its random numbers from there. SystemFunction036 is RtlGenRandom. */
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID buffer, ULONG length);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T length)
{
	while (length > 0) {
		ULONG part = length > 1 << 20 ? 1 << 20 : (ULONG)length;

		if (!SystemFunction036(data, part))
			return FALSE;
		data += part;
		length -= part;
	}
	return TRUE;
}
