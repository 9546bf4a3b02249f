//! Following: the reader runs on the CPU of the program that asks.
//!
//! A program that walks a tree or reads small files waits for an answer as often as it asks, so the
//! program and the reader take turns. On two CPUs each turn wakes the other thread up, which takes
//! longer than most answers: some 5 us if the CPU is awake, 50 us and more if it sleeps or is virtual.
//! On one CPU a turn is a context switch, 1 to 2 us. The scheduler does not arrange this by itself: it
//! moves a thread that it wakes to an idle CPU.
//!
//! It does arrange it if the reader counts as idle. So while one program asks for one small thing after
//! the other, the driver binds the reader to the program's CPU and gives the reader the policy
//! `SCHED_IDLE`. Then the scheduler wakes the program where it was, and the program goes on at once.
//!
//! A thread with this policy hardly runs if another thread wants its CPU. So a watcher, a thread with
//! the normal policy, looks every [`TICK`] whether the reader gets on. If not, the watcher gives the
//! reader its policy and its CPUs back:
//!
//! - after [`STUCK`] looks at which a request waits;
//! - after [`IDLE`] looks without a request. The reader may have a request that it has not reported.
//!
//! Both can come together. So a request waits for at most `STUCK + IDLE` looks, 14 ms, because the
//! reader follows. The watcher also ends the following if several programs ask, or if it is not a tenth
//! faster. After a failure the reader rests. Each rest is twice as long as the one before, unless
//! following had been faster.
//!
//! The reader does not follow without the right to take the policy back (`CAP_SYS_NICE`, or a limit
//! `RLIMIT_NICE` that allows the present priority), or if the process has one CPU.

mod sched;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use self::sched::{Policy, Processors, ThreadId};
use crate::device::Device;

/// Requests that are judged together before the reader follows.
const WINDOW: u64 = 32;
/// The longest time between two requests of a program that mostly waits for answers, on average.
const BUSY: Duration = Duration::from_micros(300);
/// Of so many requests one may be large or from another program.
const MOSTLY: u64 = 8;
/// Reads of more bytes are better copied while the program copies, too. In bytes.
const SMALL: u32 = 64 << 10;

/// How often the watcher looks.
const TICK: Duration = Duration::from_millis(1);
/// Looks without a request after which the reader stops following.
const IDLE: u32 = 10;
/// Looks without progress after which the reader has to be helped. Fewer would often be a virtual
/// processor that the host has taken away for a moment.
const STUCK: u32 = 4;
/// Looks between those at where the program runs.
const WHERE: u32 = 8;
/// How long the reader follows until it is judged whether that is quicker.
const TRIAL: Duration = Duration::from_millis(25);
/// How long the reader follows until that has to prove itself again.
const LASTS: Duration = Duration::from_secs(2);
/// Pauses after failures: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// The reader has all its processors and its policy.
const APART: u8 = 0;
/// The reader would like to follow.
const WISHES: u8 = 1;
const FOLLOWS: u8 = 2;
/// As apart, and it may not wish.
const RESTS: u8 = 3;
/// It cannot.
const NEVER: u8 = 4;

/// What the reader tells the watcher, and back.
#[derive(Debug, Default)]
struct Exchange {
    state: AtomicU8,
    ends: AtomicBool,
    /// Requests that were received.
    received: AtomicU64,
    /// Of these, the ones that were large or from another program than the one before.
    odd: AtomicU64,
    /// The thread that asked last.
    client: AtomicU32,
    /// The reader waits for a request.
    waits: AtomicBool,
    /// Nanoseconds from request to request in the last busy window in which the reader was apart,
    /// and in the last one in which it followed; 0 if there was none.
    apart: AtomicU64,
    near: AtomicU64,
    /// Looks of the watcher, all in all.
    looks: AtomicU64,
}

/// The part of the reader.
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
    /// For the thread that calls, if nobody else reads requests from the device. `None` if it could
    /// not follow anybody.
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

    /// To be called before the reader waits for a request. Whether it follows; then the program has
    /// the same processor, and looking for its next request would only keep it from asking.
    pub(crate) fn waits(&self) -> bool {
        self.exchange.waits.store(true, Ordering::Release);
        self.exchange.state.load(Ordering::Relaxed) == FOLLOWS
    }

    /// To be called with each request: who asks, and for how many bytes of data.
    pub(crate) fn received(&mut self, client: u32, bytes: u32) {
        let exchange = &*self.exchange;
        exchange.waits.store(false, Ordering::Relaxed);
        // Nobody else writes to these.
        let received = exchange.received.load(Ordering::Relaxed) + 1;
        exchange.received.store(received, Ordering::Release);
        // What the system sends by itself, as when it forgets or closes files, says nothing.
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

    /// Whether to follow, after a window.
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

/// Why the reader stopped following.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Nobody asks any more.
    Rest,
    /// It has followed for long enough to prove itself again.
    Again,
    /// Something else wants the processor. It had been quicker before, or that was not known yet.
    Stuck { proven: bool },
    /// Several programs ask, or for much data.
    Irregular,
    /// It is not quicker.
    Vain,
    /// Where the program runs is not known, or the reader may not run there.
    Unknown,
    /// The process has lost the right to undo the policy.
    Forbidden,
    /// The reader ends.
    End,
}

/// What the watcher sees.
#[derive(Debug, Clone, Copy)]
struct Look {
    received: u64,
    odd: u64,
    /// There is no request.
    waits: bool,
    /// As [`Exchange::near`].
    near: u64,
    /// Since the reader followed.
    elapsed: Duration,
}

/// Decides how long the reader follows.
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

    /// Whether there was a request between the last two looks.
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
            // A tenth, to be worth the trouble.
            if u128::from(now.near) * 10 > u128::from(self.apart) * 9 {
                return Some(Outcome::Vain);
            }
            self.proven = true;
        }
        (now.elapsed >= LASTS).then_some(Outcome::Again)
    }
}

/// The thread that moves the reader and looks after it. Nobody else changes the reader's policy.
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
            // Anew each time: rights and processors can change while a process runs.
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

    /// Gives the reader back what it had. That can only fail if the process has lost a right or
    /// processors since; then it is tried until it succeeds.
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
            // Those it had are gone. The system makes of this what there is.
            sched::set_processors(self.reader, &Processors::all());
        }
    }

    fn ends(&self) -> bool {
        self.exchange.ends.load(Ordering::Acquire)
    }

    /// Waits until the reader may follow again.
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

    /// Lets the reader follow until something speaks against it.
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
            // While it gets on: nothing may keep the watcher from helping.
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

    /// Where the program that asked last runs.
    fn client_at(&self, all: &Processors) -> Option<usize> {
        let client = self.exchange.client.load(Ordering::Relaxed);
        sched::processor_of(client).filter(|at| all.has(*at))
    }
}

/// To be called by a thread that the reader has made, perhaps while it followed, and which does little:
/// gives up the policy that it may have inherited. It may stay bound to a processor.
pub(crate) fn stay_behind() {
    let this = sched::this_thread();
    if sched::policy(this) == Some(Policy::Idle) {
        sched::set_policy(this, Policy::Normal);
    }
}

/// Whether a thread that took the idle policy can give it up again: tried out by the calling one.
fn may_undo() -> bool {
    let this = sched::this_thread();
    sched::set_policy(this, Policy::Idle) && sched::set_policy(this, Policy::Normal)
}

#[cfg(test)]
mod tests;
