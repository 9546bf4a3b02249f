// Package redwarfs reads DwarFS images: compressed, deduplicated, read-only file systems in one file.
//
// An [Image] is an [io/fs.FS], so everything that takes a file system takes an image:
//
//	image, err := redwarfs.Open("photos.dwarfs")
//	if err != nil {
//		return err
//	}
//	defer image.Close()
//	data, err := fs.ReadFile(image, "2024/index.html")
//	http.Handle("/", http.FileServer(http.FS(image)))
//
// Paths are those of io/fs: separated by slashes, without one at the beginning; "." is the root. Symbolic
// links are followed inside the image. Open files are [io.ReaderAt] and [io.Seeker].
//
// The package needs the C library libredwarfs, which pkg-config finds (scripts/install-capi installs it). With
// "scripts/install-capi --static x86_64 /opt/redwarfs-musl", programs are static, and need nothing installed:
//
//	export PKG_CONFIG_PATH=/opt/redwarfs-musl/lib/pkgconfig CC='zig cc -target x86_64-linux-musl'
//	go build -ldflags '-linkmode external -extldflags -static'
//
// Images are untrusted input: a damaged or hostile image gives an error. A small image can hold huge files,
// so compare sizes with a limit before you read whole files of unknown origin.
package redwarfs
