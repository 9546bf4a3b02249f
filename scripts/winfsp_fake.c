/*
 * A fake of the library of WinFsp, for the test of dwarfs.exe under Wine, where the driver of WinFsp does not
 * run. It does what the library does for a program that reads everything: it calls the callbacks of the
 * file system from a thread of its own, and writes what they answer to the file REDWARFS_FAKE_LIST.
 *
 * The declarations are written from the public reference of WinFsp (winfsp.h), apart from those of the
 * driver, so that the compiler compares the layouts. All names of functions are those of the reference.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

#define API __declspec(dllexport)
#define OK(status) ((NTSTATUS)(status) >= 0)
#define STATUS_REPARSE_POINT_ON_THE_WAY 0x104
#define STATUS_END_OF_FILE_ 0xc0000011
#define STATUS_COLLISION 0xc0000035

typedef struct {
    UINT16 Version, SectorSize, SectorsPerAllocationUnit, MaxComponentLength;
    UINT64 VolumeCreationTime;
    UINT32 VolumeSerialNumber, TransactTimeout, IrpTimeout, IrpCapacity, FileInfoTimeout;
    UINT32 CaseSensitiveSearch : 1, CasePreservedNames : 1, UnicodeOnDisk : 1, PersistentAcls : 1;
    UINT32 ReparsePoints : 1, ReparsePointsAccessCheck : 1, NamedStreams : 1, HardLinks : 1;
    UINT32 ExtendedAttributes : 1, ReadOnlyVolume : 1, PostCleanupWhenModifiedOnly : 1;
    UINT32 PassQueryDirectoryPattern : 1, AlwaysUseDoubleBuffering : 1, PassQueryDirectoryFileName : 1;
    UINT32 FlushAndPurgeOnCleanup : 1, DeviceControl : 1;
    UINT32 UmFileContextIsUserContext2 : 1, UmFileContextIsFullContext : 1, UmNoReparsePointsDirCheck : 1;
    UINT32 UmReservedFlags : 5, AllowOpenInKernelMode : 1, CasePreservedExtendedAttributes : 1;
    UINT32 WslFeatures : 1, DirectoryMarkerAsNextOffset : 1, RejectIrpPriorToTransact0 : 1;
    UINT32 SupportsPosixUnlinkRename : 1, PostDispositionWhenNecessaryOnly : 1, KmReservedFlags : 1;
    WCHAR Prefix[192];
    WCHAR FileSystemName[16];
    UINT32 VolumeInfoTimeoutValid : 1, DirInfoTimeoutValid : 1, SecurityTimeoutValid : 1;
    UINT32 StreamInfoTimeoutValid : 1, EaTimeoutValid : 1, KmAdditionalReservedFlags : 27;
    UINT32 VolumeInfoTimeout, DirInfoTimeout, SecurityTimeout, StreamInfoTimeout, EaTimeout;
    UINT32 FsextControlCode, Reserved32[1];
    UINT64 Reserved64[2];
} VolumeParams;

typedef struct {
    UINT64 TotalSize, FreeSize;
    UINT16 VolumeLabelLength;
    WCHAR VolumeLabel[32];
} VolumeInfo;

typedef struct {
    UINT32 FileAttributes, ReparseTag;
    UINT64 AllocationSize, FileSize, CreationTime, LastAccessTime, LastWriteTime, ChangeTime, IndexNumber;
    UINT32 HardLinks, EaSize;
} FileInfo;

typedef struct {
    UINT16 Size;
    FileInfo Info;
    union {
        UINT64 NextOffset;
        UINT8 Padding[24];
    };
    WCHAR FileNameBuf[];
} DirInfo;

typedef struct FileSystem FileSystem;

typedef struct {
    NTSTATUS (*GetVolumeInfo)(FileSystem *, VolumeInfo *);
    void *SetVolumeLabel;
    NTSTATUS (*GetSecurityByName)(FileSystem *, PWSTR, PUINT32, void *, SIZE_T *);
    void *Create;
    NTSTATUS (*Open)(FileSystem *, PWSTR, UINT32, UINT32, PVOID *, FileInfo *);
    void *Overwrite, *Cleanup;
    VOID (*Close)(FileSystem *, PVOID);
    NTSTATUS (*Read)(FileSystem *, PVOID, PVOID, UINT64, ULONG, PULONG);
    NTSTATUS (*Write)(FileSystem *, PVOID, PVOID, UINT64, ULONG, BOOLEAN, BOOLEAN, PULONG, FileInfo *);
    NTSTATUS (*Flush)(FileSystem *, PVOID, FileInfo *);
    NTSTATUS (*GetFileInfo)(FileSystem *, PVOID, FileInfo *);
    void *SetBasicInfo, *SetFileSize, *CanDelete, *Rename;
    NTSTATUS (*GetSecurity)(FileSystem *, PVOID, void *, SIZE_T *);
    void *SetSecurity;
    NTSTATUS (*ReadDirectory)(FileSystem *, PVOID, PWSTR, PWSTR, PVOID, ULONG, PULONG);
    NTSTATUS (*ResolveReparsePoints)(FileSystem *, PWSTR, UINT32, BOOLEAN, void *, PVOID, PSIZE_T);
    NTSTATUS (*GetReparsePoint)(FileSystem *, PVOID, PWSTR, PVOID, PSIZE_T);
    void *SetReparsePoint, *DeleteReparsePoint, *GetStreamInfo, *GetDirInfoByName, *Control, *SetDelete;
    void *CreateEx, *OverwriteEx, *GetEa, *SetEa, *Obsolete0;
    VOID (*DispatcherStopped)(FileSystem *, BOOLEAN);
    void *Reserved[31];
} Interface;

struct FileSystem {
    UINT16 Version;
    PVOID UserContext;
    const Interface *calls;
    VolumeParams params;
    WCHAR point[MAX_PATH];
    HANDLE thread;
    FILE *list;
};

_Static_assert(sizeof(VolumeParams) == 504 && offsetof(VolumeParams, FileSystemName) == 424, "parameters");
_Static_assert(sizeof(VolumeInfo) == 88 && sizeof(FileInfo) == 72, "information");
_Static_assert(offsetof(DirInfo, FileNameBuf) == 104 && sizeof(Interface) == 512, "listings and callbacks");

/* The text in UTF-8. */
static const char *utf8(const WCHAR *text) {
    static char out[4096];
    WideCharToMultiByte(CP_UTF8, 0, text, -1, out, sizeof out, NULL, NULL);
    return out;
}

static void complain(FileSystem *fs, const char *what, const WCHAR *path, NTSTATUS status) {
    fprintf(fs->list, "ERROR\t%s\t%08lx\t%s\n", what, (unsigned long)status, utf8(path));
}

/* The checksum of zip archives. */
static UINT32 checksum(UINT32 sum, const unsigned char *bytes, ULONG length) {
    sum = ~sum;
    while (length-- > 0) {
        sum ^= *bytes++;
        for (int bit = 0; bit < 8; bit++) sum = sum >> 1 ^ (sum & 1 ? 0xedb88320 : 0);
    }
    return ~sum;
}

static void read_file(FileSystem *fs, PVOID context, const WCHAR *path, const FileInfo *info) {
    static unsigned char buffer[100000];
    UINT64 offset = 0;
    UINT32 sum = 0;
    for (;;) {
        ULONG done = 0;
        NTSTATUS status = fs->calls->Read(fs, context, buffer, offset, sizeof buffer, &done);
        if (status == (NTSTATUS)STATUS_END_OF_FILE_) break;
        if (!OK(status)) {
            complain(fs, "read", path, status);
            return;
        }
        sum = checksum(sum, buffer, done);
        offset += done;
    }
    if (offset != info->FileSize) complain(fs, "size", path, 0);
    fprintf(fs->list, "file\t%lx\t%08lx\t%llu\t%s\n", (unsigned long)info->FileAttributes, (unsigned long)sum,
            (unsigned long long)info->LastWriteTime, utf8(path));
}

static void read_link(FileSystem *fs, PVOID context, WCHAR *path, const FileInfo *info) {
    static unsigned char buffer[16384];
    WCHAR target[4096];
    SIZE_T size = sizeof buffer;
    NTSTATUS status = fs->calls->GetReparsePoint(fs, context, path, buffer, &size);
    if (!OK(status)) {
        complain(fs, "link", path, status);
        return;
    }
    UINT16 at, length;
    memcpy(&at, buffer + 12, 2);
    memcpy(&length, buffer + 14, 2);
    memset(target, 0, sizeof target);
    if (info->ReparseTag == 0xa000000c) memcpy(target, buffer + 20 + at, length);
    fprintf(fs->list, "link\t%lx\t%lx\t", (unsigned long)info->FileAttributes, (unsigned long)info->ReparseTag);
    fprintf(fs->list, "%s\t", utf8(target));
    fprintf(fs->list, "%s\n", utf8(path));
}

static void visit(FileSystem *fs, WCHAR *path);

static void read_directory(FileSystem *fs, PVOID context, const WCHAR *path) {
    /* Small, so that a listing has parts. */
    UINT64 buffer[128];
    WCHAR marker[256];
    PWSTR after = NULL;
    fprintf(fs->list, "dir\t%s\n", utf8(path));
    for (;;) {
        ULONG done = 0;
        NTSTATUS status = fs->calls->ReadDirectory(fs, context, NULL, after, buffer, sizeof buffer, &done);
        if (!OK(status) || done == 0) {
            complain(fs, "list", path, status);
            return;
        }
        for (ULONG at = 0; at < done;) {
            DirInfo *entry = (DirInfo *)((char *)buffer + at);
            if (entry->Size == 0) return;
            size_t length = (entry->Size - offsetof(DirInfo, FileNameBuf)) / sizeof(WCHAR);
            memcpy(marker, entry->FileNameBuf, length * sizeof(WCHAR));
            marker[length] = 0;
            at = (at + entry->Size + 7) & ~7UL;
            if (wcscmp(marker, L".") == 0 || wcscmp(marker, L"..") == 0) continue;
            size_t size = wcslen(path) + length + 2;
            WCHAR *child = malloc(size * sizeof(WCHAR));
            swprintf(child, size, L"%ls\\%ls", wcscmp(path, L"\\") == 0 ? L"" : path, marker);
            visit(fs, child);
            free(child);
        }
        after = marker;
    }
}

static void visit(FileSystem *fs, WCHAR *path) {
    UINT32 attributes = 0;
    SIZE_T size = 4096;
    char descriptor[4096];
    PVOID context = NULL;
    FileInfo info, again;
    NTSTATUS status = fs->calls->GetSecurityByName(fs, path, &attributes, descriptor, &size);
    if (!OK(status) || status == STATUS_REPARSE_POINT_ON_THE_WAY) {
        complain(fs, "security", path, status);
        return;
    }
    if (!IsValidSecurityDescriptor(descriptor) || GetSecurityDescriptorLength(descriptor) != size)
        complain(fs, "descriptor", path, 0);
    status = fs->calls->Open(fs, path, 0, 0x120089, &context, &info);
    if (!OK(status) || context == NULL) {
        complain(fs, "open", path, status);
        return;
    }
    status = fs->calls->GetFileInfo(fs, context, &again);
    if (!OK(status) || memcmp(&info, &again, sizeof info) != 0 || info.FileAttributes != attributes)
        complain(fs, "information", path, status);
    if (info.FileAttributes & FILE_ATTRIBUTE_REPARSE_POINT)
        read_link(fs, context, path, &info);
    else if (info.FileAttributes & FILE_ATTRIBUTE_DIRECTORY)
        read_directory(fs, context, path);
    else
        read_file(fs, context, path, &info);
    fs->calls->Close(fs, context);
}

static DWORD WINAPI serve(void *argument) {
    FileSystem *fs = argument;
    const VolumeParams *params = &fs->params;
    VolumeInfo volume;
    WCHAR root[] = L"\\", label[33] = {0};
    ULONG done = 0;
    fprintf(fs->list, "point\t%s\n", utf8(fs->point));
    fprintf(fs->list, "type\t%s\n", utf8(params->FileSystemName));
    fprintf(fs->list, "params\t%u\t%u\t%u\t%lx\n", params->Version, params->SectorSize * params->SectorsPerAllocationUnit,
            params->MaxComponentLength, (unsigned long)params->FileInfoTimeout);
    fprintf(fs->list, "flags\t%d%d%d%d%d%d%d%d\n", params->CaseSensitiveSearch, params->CasePreservedNames,
            params->UnicodeOnDisk, params->PersistentAcls, params->ReparsePoints, params->ReadOnlyVolume,
            params->PostCleanupWhenModifiedOnly, params->UmFileContextIsUserContext2);
    if (OK(fs->calls->GetVolumeInfo(fs, &volume))) {
        memcpy(label, volume.VolumeLabel, volume.VolumeLabelLength);
        fprintf(fs->list, "volume\t%llu\t%s\n", (unsigned long long)volume.TotalSize, utf8(label));
    }
    visit(fs, root);
    fprintf(fs->list, "write\t%08lx\n",
            (unsigned long)fs->calls->Write(fs, NULL, root, 0, 1, FALSE, FALSE, &done, NULL));
    fprintf(fs->list, "end\n");
    fflush(fs->list);
    if (getenv("REDWARFS_FAKE_STOP") != NULL) fs->calls->DispatcherStopped(fs, FALSE);
    return 0;
}

API NTSTATUS FspFileSystemCreate(PWSTR device, const VolumeParams *params, const Interface *calls, FileSystem **out) {
    const char *name = getenv("REDWARFS_FAKE_LIST");
    if (wcscmp(device, L"WinFsp.Disk") != 0 || params->Version != sizeof *params || name == NULL) return 0xc000000d;
    FileSystem *fs = calloc(1, sizeof *fs);
    fs->calls = calls;
    fs->params = *params;
    fs->list = fopen(name, "wb");
    *out = fs;
    return 0;
}

API VOID FspFileSystemDelete(FileSystem *fs) {
    fprintf(fs->list, "deleted\n");
    fclose(fs->list);
    free(fs);
}

API NTSTATUS FspFileSystemSetMountPoint(FileSystem *fs, PWSTR point) {
    /* As if the last two drives were in use. */
    if (wcscmp(point, L"Z:") == 0 || wcscmp(point, L"Y:") == 0) return STATUS_COLLISION;
    wcsncpy(fs->point, point, MAX_PATH - 1);
    return 0;
}

API VOID FspFileSystemRemoveMountPoint(FileSystem *fs) { fprintf(fs->list, "removed\n"); }

API NTSTATUS FspFileSystemStartDispatcher(FileSystem *fs, ULONG threads) {
    fs->thread = threads == 0 ? CreateThread(NULL, 0, serve, fs, 0, NULL) : NULL;
    return fs->thread == NULL ? 0xc000009a : 0;
}

API VOID FspFileSystemStopDispatcher(FileSystem *fs) {
    WaitForSingleObject(fs->thread, INFINITE);
    CloseHandle(fs->thread);
    fprintf(fs->list, "stopped\n");
}

API BOOLEAN FspFileSystemAddDirInfo(DirInfo *entry, PVOID buffer, ULONG length, PULONG done) {
    ULONG start = (*done + 7) & ~7UL;
    ULONG size = entry == NULL ? sizeof(UINT16) : entry->Size;
    if (start + size > length) return FALSE;
    if (entry == NULL)
        memset((char *)buffer + start, 0, size);
    else
        memcpy((char *)buffer + start, entry, size);
    *done = start + size;
    return TRUE;
}

API NTSTATUS FspFileSystemResolveReparsePoints(FileSystem *fs, PVOID by_name, PVOID context, PWSTR path, UINT32 index,
                                               BOOLEAN last, PVOID status, PVOID buffer, PSIZE_T size) {
    /* Nothing here opens a path with links. */
    (void)fs, (void)by_name, (void)context, (void)path, (void)index, (void)last, (void)status, (void)buffer, (void)size;
    return 0xc0000034;
}
