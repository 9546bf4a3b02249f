//! Programs run under limits, with what they used measured.
#![allow(
    unsafe_code,
    reason = "limits between fork and exec, and the resources of one child, have no safe interface"
)]

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, pidfd_open, pidfd_send_signal};

/// What a program may use.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// CPU time that it may use, in whole seconds.
    pub processor: Duration,
    /// Time until it is killed. Longer than the CPU time, so that a busy machine does not look like a
    /// program that hangs.
    pub time: Duration,
    /// Time after which it is asked to end (SIGTERM), if it may take longer than it should.
    pub ask_after: Option<Duration>,
    /// Address space in bytes, including memory that is reserved but not used.
    pub address_space: u64,
    /// Size of every file that it writes, in bytes. Writing more gives `EFBIG`.
    pub file_size: u64,
}

impl Default for Limits {
    /// 10 s of CPU time, 60 s, 2 GiB, 64 MiB.
    fn default() -> Self {
        Self {
            processor: Duration::from_secs(10),
            time: Duration::from_secs(60),
            ask_after: None,
            address_space: 2 << 30,
            file_size: 64 << 20,
        }
    }
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With an exit code.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// It was killed because its time or CPU time was over.
    TimedOut,
}

/// What a program did.
#[derive(Debug)]
pub struct Run {
    /// How it ended.
    pub end: End,
    /// Whether it was asked to end.
    pub asked: bool,
    /// Wall time.
    pub time: Duration,
    /// Largest resident memory in bytes; at least [`inherited`](Self::inherited), see there.
    pub peak: u64,
    /// Resident memory of the process that started it, in bytes. Linux counts that as memory of
    /// the program too, so a [`peak`](Self::peak) that is not above it says nothing.
    pub inherited: u64,
    /// The end of what it wrote to standard error, at most 64 KiB.
    pub stderr: String,
}

impl Run {
    /// Whether it crashed: ended by a signal, or some thread of it panicked.
    pub fn crashed(&self) -> bool {
        matches!(self.end, End::Signal(_) | End::Code(101))
            || self.stderr.contains("panicked at")
            || self.stderr.contains("memory allocation of")
    }
}

/// A program that runs under limits. It is killed when this goes out of scope.
#[derive(Debug)]
pub struct Running {
    child: Option<Child>,
    pidfd: OwnedFd,
    stderr: File,
    start: Instant,
    inherited: u64,
    limits: Limits,
}

impl Running {
    /// Starts `command`. Its standard error goes to an unnamed file in `scratch`. Standard input is
    /// empty, and standard output is not changed.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(command: &mut Command, limits: Limits, scratch: &Path) -> io::Result<Self> {
        let stderr = unnamed_file(scratch)?;
        command.stdin(Stdio::null()).stderr(stderr.try_clone()?);
        let limit = |bytes| Rlimit {
            current: Some(bytes),
            maximum: Some(bytes),
        };
        let set = [
            (Resource::As, limit(limits.address_space)),
            (Resource::Fsize, limit(limits.file_size)),
            (Resource::Core, limit(0)),
            (Resource::Cpu, limit(limits.processor.as_secs())),
        ];
        // SAFETY: the closure runs in the child between fork and exec. It makes system calls
        // only, on values that it owns; it neither allocates nor takes locks.
        unsafe {
            command.pre_exec(move || {
                for (resource, limit) in &set {
                    rustix::process::setrlimit(*resource, *limit)?;
                }
                // Stays ignored across exec, so that writing too much is an error, not the end.
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                Ok(())
            });
        }
        let start = Instant::now();
        let before = resident();
        let child = command.spawn()?;
        // Other threads of this process allocate meanwhile.
        let inherited = before.max(resident()) + (1 << 20);
        let pid = pid_of(&child);
        Ok(Self {
            pidfd: pidfd_open(pid, PidfdFlags::empty())?,
            child: Some(child),
            stderr,
            start,
            inherited,
            limits,
        })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("not waited for yet").id()
    }

    /// Standard output, if it is a pipe.
    pub fn stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.as_mut().and_then(|child| child.stdout.take())
    }

    /// Waits until it ended or `time` passed; whether it ended.
    pub fn ended_within(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let timeout = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) if left.is_zero() => return false,
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return true,
                Err(e) => panic!("poll: {e}"),
            }
        }
    }

    /// Sends a signal. A process that has ended ignores it.
    pub fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }

    /// Whether its time is over.
    pub fn is_overdue(&self) -> bool {
        self.start.elapsed() > self.limits.time
    }

    /// Waits for its end, within its limits.
    ///
    /// # Errors
    /// Waiting failed.
    pub fn wait(mut self) -> io::Result<Run> {
        let mut asked = false;
        if let Some(after) = self.limits.ask_after
            && !self.ended_within(after.saturating_sub(self.start.elapsed()))
        {
            asked = true;
            self.signal(Signal::TERM);
        }
        let left = self.limits.time.saturating_sub(self.start.elapsed());
        let in_time = self.ended_within(left);
        if !in_time {
            self.signal(Signal::KILL);
        }
        let time = self.start.elapsed();
        let (status, used) = reap(self.child.as_ref().expect("waited for once"))?;
        self.child = None;
        let end = match (in_time, libc::WIFEXITED(status)) {
            (false, _) => End::TimedOut,
            (true, true) => End::Code(libc::WEXITSTATUS(status)),
            // The soft limit sends XCPU, the hard one KILL; they are the same here.
            (true, false) if used.processor + SECOND > self.limits.processor => End::TimedOut,
            (true, false) => End::Signal(libc::WTERMSIG(status)),
        };
        Ok(Run {
            end,
            asked,
            time,
            peak: used.memory,
            inherited: self.inherited,
            stderr: tail(&mut self.stderr)?,
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs `command` to its end.
///
/// # Errors
/// It cannot be started.
pub fn run(command: &mut Command, limits: Limits, scratch: &Path) -> io::Result<Run> {
    Running::start(command, limits, scratch)?.wait()
}

/// Resident memory of this process in bytes; 0 if the system does not tell.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// Gives memory that was freed back to the system.
pub use redwarfs_io::trim_heap as trim;

/// A file that is gone when it is closed.
///
/// # Errors
/// It cannot be created in `dir`.
pub fn unnamed_file(dir: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR)?.into())
}

fn tail(file: &mut File) -> io::Result<String> {
    const KEEP: u64 = 64 << 10;
    let len = file.metadata()?.len();
    file.seek(io::SeekFrom::Start(len.saturating_sub(KEEP)))?;
    let mut text = Vec::new();
    file.take(KEEP).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn pid_of(child: &Child) -> Pid {
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .expect("the number of a process")
}

/// The kernel counts the CPU time of several threads only to the tick.
const SECOND: Duration = Duration::from_secs(1);

/// What a child used.
struct Used {
    /// Largest resident memory in bytes.
    memory: u64,
    processor: Duration,
}

/// Takes the status and the used resources of a child for which no other code waits.
fn reap(child: &Child) -> io::Result<(libc::c_int, Used)> {
    let pid = pid_of(child).as_raw_nonzero().get();
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both pointers are to live memory of the right types.
        let got = unsafe { libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) };
        if got == pid {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: plain numbers, for which zero is a value; wait4 has filled them in.
    let usage = unsafe { usage.assume_init() };
    let time = |time: libc::timeval| {
        let micros = u32::try_from(time.tv_usec).unwrap_or(0);
        Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), micros * 1000)
    };
    let used = Used {
        memory: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
        processor: time(usage.ru_utime) + time(usage.ru_stime),
    };
    Ok((status, used))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limits: Limits) -> Run {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script);
        run(&mut command, limits, &std::env::temp_dir()).unwrap()
    }

    #[test]
    fn ends_are_told_apart() {
        let limits = Limits::default();
        let run = shell("echo hello >&2; exit 3", limits);
        assert_eq!((run.end, run.stderr.as_str()), (End::Code(3), "hello\n"));
        assert!(run.peak > 100 << 10 && !run.crashed());
        let run = shell("kill -SEGV $$", limits);
        assert_eq!(run.end, End::Signal(libc::SIGSEGV));
        assert!(run.crashed());
        let short = Limits {
            time: Duration::from_millis(50),
            ..limits
        };
        assert_eq!(shell("exec sleep 1000", short).end, End::TimedOut);
        let asked = Limits {
            ask_after: Some(Duration::from_millis(20)),
            ..limits
        };
        let run = shell("exec sleep 1000", asked);
        assert_eq!((run.end, run.asked), (End::Signal(libc::SIGTERM), true));
        let busy = Limits {
            processor: Duration::from_secs(1),
            ..limits
        };
        assert_eq!(shell("while :; do :; done", busy).end, End::TimedOut);
    }

    #[test]
    fn limits_hold() {
        let limits = Limits {
            file_size: 1000,
            ..Limits::default()
        };
        let dir = std::env::temp_dir();
        let file = dir.join(format!("redwarfs-limit-{}", std::process::id()));
        let script = format!("exec head -c 5000 /dev/zero > {}", file.display());
        let run = shell(&script, limits);
        assert_ne!(run.end, End::Code(0));
        assert_eq!(std::fs::metadata(&file).unwrap().len(), 1000);
        std::fs::remove_file(&file).unwrap();
    }
}
