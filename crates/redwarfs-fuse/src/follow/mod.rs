//! Following: the reading thread runs on the CPU of the requesting process.
//!
//! A process that walks a tree or reads small files waits for each reply, so the process and the
//! reading thread take turns. On two CPUs each turn wakes the other thread. A wake-up takes longer than
//! most requests: about 5 us if the CPU is awake, and 50 us or more if it sleeps or is virtual. On one
//! CPU a turn is a context switch of 1 to 2 us. But the scheduler moves a thread that it wakes to an
//! idle CPU, unless the CPU of the waking thread counts as idle.
//!
//! A CPU counts as idle if its thread has the policy `SCHED_IDLE`. So while one process sends many small
//! requests, the driver binds the reading thread to the CPU of the process, and gives the thread this
//! policy. The scheduler then wakes the process on its CPU, and the process runs at once.
//!
//! A thread with this policy hardly runs if another thread wants its CPU. So a watcher, a thread with the
//! normal policy, checks every [`TICK`] that the reading thread makes progress. The watcher restores the
//! policy and the CPUs of the reading thread
//!
//! - after [`STUCK`] checks without progress at which a request waits;
//! - after [`IDLE`] checks without a request. The thread may have a request that it has not reported.
//!
//! Both can follow each other. So following delays a request by at most `STUCK + IDLE` checks, 14 ms. The
//! watcher also ends following if several processes send requests, or if requests do not become a tenth
//! faster. After each failure there is a pause. It is twice as long as the previous one, unless following
//! had been faster before.
//!
//! The reading thread does not follow if the driver has only one CPU, or may not restore the policy.
//! Restoring needs `CAP_SYS_NICE`, or a limit `RLIMIT_NICE` that allows the priority of the thread.

mod sched;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use self::sched::{Policy, Processors, ThreadId};
use crate::device::Device;

/// Requests that are judged together before the reading thread follows.
const WINDOW: u64 = 32;
/// Longest average time between two requests of a process that mostly waits for replies.
const BUSY: Duration = Duration::from_micros(300);
/// One of this many requests may be large, or come from another process.
const MOSTLY: u64 = 8;
/// Largest small read in bytes. For larger reads, two CPUs are faster: both sides copy data.
const SMALL: u32 = 64 << 10;

/// Time between two checks of the watcher.
const TICK: Duration = Duration::from_millis(1);
/// Checks without a request after which following ends.
const IDLE: u32 = 10;
/// Checks without progress after which following ends. With fewer checks, a short pause of a virtual CPU
/// by the host would often end it.
const STUCK: u32 = 4;
/// Number of checks between two checks of the CPU of the process.
const WHERE: u32 = 8;
/// Time of following until the watcher decides whether it is faster.
const TRIAL: Duration = Duration::from_millis(25);
/// Time of following until it is compared again.
const LASTS: Duration = Duration::from_secs(2);
/// Pauses after failures: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// The reading thread has all its CPUs and its policy.
const APART: u8 = 0;
/// The reading thread requests to follow.
const WISHES: u8 = 1;
const FOLLOWS: u8 = 2;
/// As `APART`, but the thread may not request to follow.
const RESTS: u8 = 3;
/// The thread cannot follow.
const NEVER: u8 = 4;

/// The data that the reading thread and the watcher exchange.
#[derive(Debug, Default)]
struct Exchange {
    state: AtomicU8,
    ends: AtomicBool,
    /// Requests that were received.
    received: AtomicU64,
    /// Of these, requests that were large, or from another process than the previous one.
    odd: AtomicU64,
    /// The thread that sent the last request.
    client: AtomicU32,
    /// Whether the reading thread waits for a request.
    waits: AtomicBool,
    /// Nanoseconds from request to request in the last busy window without following, and in the last one
    /// with following; 0 if there was none.
    apart: AtomicU64,
    near: AtomicU64,
    /// Number of checks of the watcher.
    looks: AtomicU64,
}

/// The part of following that the reading thread calls.
#[derive(Debug)]
pub(crate) struct Follower {
    exchange: Arc<Exchange>,
    watcher: Option<JoinHandle<()>>,
    device: Arc<Device>,
    start: Instant,
    /// Counters at the start of the window.
    first: u64,
    first_odd: u64,
    first_state: u8,
}

impl Follower {
    /// For the calling thread, which must be the only one that reads requests from the device. `None` if
    /// it cannot follow.
    pub(crate) fn new(device: &Arc<Device>) -> Option<Self> {
        let normal = sched::policy(sched::this_thread()) == Some(Policy::Normal);
        let several = sched::processors(sched::this_thread())?.count() > 1;
        (normal && several).then(|| Self {
            exchange: Arc::default(),
            watcher: None,
            device: Arc::clone(device),
            start: Instant::now(),
            first: 0,
            first_odd: 0,
            first_state: APART,
        })
    }

    /// Call it before the thread waits for a request. Returns whether the thread follows: then the process
    /// needs the same CPU to send its next request, so the thread must not poll.
    pub(crate) fn waits(&self) -> bool {
        self.exchange.waits.store(true, Ordering::Release);
        self.exchange.state.load(Ordering::Relaxed) == FOLLOWS
    }

    /// Call it with each request: the requesting thread, and the number of data bytes it requests.
    pub(crate) fn received(&mut self, client: u32, bytes: u32) {
        let exchange = &*self.exchange;
        exchange.waits.store(false, Ordering::Relaxed);
        // Only this thread writes to these.
        let received = exchange.received.load(Ordering::Relaxed) + 1;
        exchange.received.store(received, Ordering::Release);
        // Requests of the kernel itself, such as forgetting or closing files, do not count.
        let other = client != 0 && exchange.client.load(Ordering::Relaxed) != client;
        if bytes > SMALL || other {
            if other {
                exchange.client.store(client, Ordering::Relaxed);
            }
            let odd = exchange.odd.load(Ordering::Relaxed) + 1;
            exchange.odd.store(odd, Ordering::Relaxed);
        }
        if received - self.first >= WINDOW {
            self.judge(received);
        }
    }

    /// Decides after a window whether to follow.
    fn judge(&mut self, received: u64) {
        let odd = self.exchange.odd.load(Ordering::Relaxed);
        let count = received - self.first;
        let elapsed = self.start.elapsed();
        let regular = (odd - self.first_odd) * MOSTLY <= count;
        let state = self.exchange.state.load(Ordering::Acquire);
        let uniform = self.first_state == state;
        (self.start, self.first, self.first_odd) = (Instant::now(), received, odd);
        self.first_state = state;
        let each = elapsed.as_nanos() as u64 / count;
        if !uniform || !regular || u128::from(each) > BUSY.as_nanos() {
            return;
        }
        if state == FOLLOWS {
            self.exchange.near.store(each, Ordering::Relaxed);
            return;
        }
        self.exchange.apart.store(each, Ordering::Relaxed);
        let wish = self.exchange.state.compare_exchange(
            APART,
            WISHES,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if wish.is_ok() {
            match &self.watcher {
                Some(watcher) => watcher.thread().unpark(),
                None => self.start_watcher(),
            }
        }
    }

    fn start_watcher(&mut self) {
        let watcher = Watcher {
            exchange: Arc::clone(&self.exchange),
            device: Arc::clone(&self.device),
            reader: sched::this_thread(),
            pause: PAUSES.0,
        };
        self.watcher = Builder::new()
            .name("fuse-follow".into())
            .spawn(move || watcher.run())
            .ok();
        if self.watcher.is_none() {
            self.exchange.state.store(NEVER, Ordering::Relaxed);
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.exchange.ends.store(true, Ordering::Release);
        if let Some(watcher) = self.watcher.take() {
            watcher.thread().unpark();
            let _ = watcher.join();
        }
    }
}

/// The reason why following ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// There are no requests.
    Rest,
    /// It is time to compare again.
    Again,
    /// Another thread wants the CPU. `proven`: following had been faster before.
    Stuck { proven: bool },
    /// Several processes send requests, or a process reads much data.
    Irregular,
    /// Following is not faster.
    Vain,
    /// The CPU of the process is unknown, or the reading thread may not run there.
    Unknown,
    /// The driver has lost the right to restore the policy.
    Forbidden,
    /// The reading thread ends.
    End,
}

/// The state that the watcher sees at a check.
#[derive(Debug, Clone, Copy)]
struct Look {
    received: u64,
    odd: u64,
    /// Whether the thread waits for a request.
    waits: bool,
    /// As [`Exchange::near`].
    near: u64,
    /// Time since following began.
    elapsed: Duration,
}

/// Decides when following ends.
#[derive(Debug)]
struct Judge {
    first: Look,
    last: u64,
    /// As [`Exchange::apart`].
    apart: u64,
    looks: u32,
    idle: u32,
    stuck: u32,
    proven: bool,
}

impl Judge {
    fn new(first: Look, apart: u64) -> Self {
        Self {
            first,
            last: first.received,
            apart,
            looks: 0,
            idle: 0,
            stuck: 0,
            proven: false,
        }
    }

    /// Whether there was a request between the last two checks.
    fn gets_on(&self) -> bool {
        self.idle == 0 && self.stuck == 0
    }

    fn look(&mut self, now: Look) -> Option<Outcome> {
        self.looks += 1;
        if now.received != self.last {
            (self.last, self.idle, self.stuck) = (now.received, 0, 0);
        } else if now.waits {
            self.idle += 1;
        } else {
            self.stuck += 1;
        }
        if self.idle >= IDLE {
            return Some(Outcome::Rest);
        }
        if self.stuck >= STUCK {
            let proven = self.proven;
            return Some(Outcome::Stuck { proven });
        }
        let count = now.received - self.first.received;
        if (now.odd - self.first.odd) * MOSTLY > count.max(WINDOW) {
            return Some(Outcome::Irregular);
        }
        if !self.proven && now.elapsed >= TRIAL && now.near > 0 {
            // Less than a tenth is not worth the effort.
            if u128::from(now.near) * 10 > u128::from(self.apart) * 9 {
                return Some(Outcome::Vain);
            }
            self.proven = true;
        }
        (now.elapsed >= LASTS).then_some(Outcome::Again)
    }
}

/// The watcher. Only this thread changes the policy of the reading thread.
#[derive(Debug)]
struct Watcher {
    exchange: Arc<Exchange>,
    device: Arc<Device>,
    reader: ThreadId,
    pause: Duration,
}

impl Watcher {
    fn run(mut self) {
        while !self.ends() {
            if self.exchange.state.load(Ordering::Acquire) != WISHES {
                thread::park();
                continue;
            }
            // Each time, because rights and CPUs can change while a process runs.
            let all = sched::processors(self.reader).filter(|_| may_undo());
            let outcome = match &all {
                Some(all) => self.accompany(all),
                None => Outcome::Forbidden,
            };
            if outcome == Outcome::Forbidden {
                debug!(
                    "requests are answered wherever the system likes: SCHED_IDLE would be for good"
                );
                self.exchange.state.store(NEVER, Ordering::Release);
                return;
            }
            if let Some(all) = &all {
                self.restore(all);
            }
            self.exchange.state.store(RESTS, Ordering::Release);
            self.rest(outcome);
            self.exchange.state.store(APART, Ordering::Release);
        }
    }

    /// Restores the policy and CPUs of the reading thread. This can fail only if the process has lost a
    /// right or CPUs in the meantime; then it is repeated until it succeeds.
    fn restore(&self, all: &Processors) {
        let mut pause = TICK;
        while !sched::set_policy(self.reader, Policy::Normal) {
            if pause == TICK {
                warn!("the thread that answers requests cannot get its scheduling policy back");
            }
            if self.ends() {
                return;
            }
            thread::park_timeout(pause);
            pause = (pause * 2).min(Duration::from_secs(1));
        }
        if !sched::set_processors(self.reader, all) {
            // The previous CPUs are gone. The system reduces this set to the CPUs that exist.
            sched::set_processors(self.reader, &Processors::all());
        }
    }

    fn ends(&self) -> bool {
        self.exchange.ends.load(Ordering::Acquire)
    }

    /// Waits until the reading thread may follow again.
    fn rest(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Rest | Outcome::Again => self.pause = PAUSES.0,
            Outcome::End => {}
            _ => {
                if outcome == (Outcome::Stuck { proven: true }) {
                    self.pause = PAUSES.0;
                }
                debug!(
                    "the reader does not follow for {:?}: {outcome:?}",
                    self.pause
                );
                let end = Instant::now() + self.pause;
                while let Some(left) = end.checked_duration_since(Instant::now())
                    && !self.ends()
                {
                    thread::park_timeout(left);
                }
                self.pause = (self.pause * 2).min(PAUSES.1);
            }
        }
    }

    /// Lets the reading thread follow until an [`Outcome`] ends it.
    fn accompany(&self, all: &Processors) -> Outcome {
        let exchange = &*self.exchange;
        let apart = exchange.apart.load(Ordering::Relaxed);
        exchange.near.store(0, Ordering::Relaxed);
        let Some(mut at) = self.client_at(all) else {
            return Outcome::Unknown;
        };
        if !sched::set_processors(self.reader, &Processors::only(at))
            || !sched::set_policy(self.reader, Policy::Idle)
        {
            return Outcome::Unknown;
        }
        exchange.state.store(FOLLOWS, Ordering::Release);
        let begun = Instant::now();
        let mut judge = Judge::new(self.look(begun), apart);
        loop {
            thread::park_timeout(TICK);
            if self.ends() {
                return Outcome::End;
            }
            if let Some(outcome) = judge.look(self.look(begun)) {
                return outcome;
            }
            // Only while there is progress: otherwise the watcher must be free to help.
            if judge.looks.is_multiple_of(WHERE)
                && judge.gets_on()
                && let Some(now) = self.client_at(all)
                && now != at
            {
                at = now;
                sched::set_processors(self.reader, &Processors::only(at));
            }
        }
    }

    fn look(&self, begun: Instant) -> Look {
        let exchange = &*self.exchange;
        exchange.looks.fetch_add(1, Ordering::Relaxed);
        Look {
            received: exchange.received.load(Ordering::Acquire),
            odd: exchange.odd.load(Ordering::Relaxed),
            waits: exchange.waits.load(Ordering::Acquire) && !self.device.is_ready(),
            near: exchange.near.load(Ordering::Relaxed),
            elapsed: begun.elapsed(),
        }
    }

    /// The CPU of the thread that sent the last request.
    fn client_at(&self, all: &Processors) -> Option<usize> {
        let client = self.exchange.client.load(Ordering::Relaxed);
        sched::processor_of(client).filter(|at| all.has(*at))
    }
}

/// Resets the policy of the calling thread. A thread inherits the idle policy if the reading thread starts
/// it while it follows. The thread may stay bound to a CPU, so call this only in threads that do little.
pub(crate) fn stay_behind() {
    let this = sched::this_thread();
    if sched::policy(this) == Some(Policy::Idle) {
        sched::set_policy(this, Policy::Normal);
    }
}

/// The CPUs of a thread that follows nobody, for threads that are started later, maybe by one that does.
#[derive(Debug)]
pub(crate) struct Home(Option<sched::Processors>);

impl Home {
    /// That of the calling thread.
    pub(crate) fn of_this_thread() -> Self {
        Self(sched::processors(sched::this_thread()))
    }

    /// Moves the calling thread there, with the normal policy.
    pub(crate) fn enter(&self) {
        stay_behind();
        if let Some(processors) = &self.0 {
            sched::set_processors(sched::this_thread(), processors);
        }
    }
}

/// Whether a thread with the idle policy can restore its policy. The calling thread tries it.
fn may_undo() -> bool {
    let this = sched::this_thread();
    sched::set_policy(this, Policy::Idle) && sched::set_policy(this, Policy::Normal)
}

#[cfg(test)]
mod tests;
