use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::mpsc;

use super::*;
use crate::device::Received;

/// Far longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A reader that gets its requests, of 8 bytes each, from a pipe, and the end that sends them.
struct Rig {
    requests: PipeWriter,
    answers: PipeReader,
    reader: ThreadId,
    exchange: Arc<Exchange>,
    thread: Option<JoinHandle<()>>,
}

impl Rig {
    /// `None`, said aloud, if a reader cannot follow here.
    fn new(name: &str) -> Option<Self> {
        // A thread that cannot undo its policy keeps it.
        let may = thread::spawn(may_undo).join().expect("a probe");
        let several = sched::processors(sched::this_thread())?.count() > 1;
        if !may || !several {
            redwarfs_testkit::skip(
                name,
                "needs two processors and the right to undo SCHED_IDLE",
            );
            return None;
        }
        let (incoming, requests) = io::pipe().expect("a pipe");
        let (answers, mut outgoing) = io::pipe().expect("a pipe");
        let (send, receive) = mpsc::channel();
        let thread = thread::spawn(move || {
            let device = Arc::new(Device::new(incoming.into()));
            let mut follower = Follower::new(&device).expect("possible here");
            send.send((sched::this_thread(), Arc::clone(&follower.exchange)))
                .expect("somebody waits");
            let mut request = [0; 8];
            loop {
                follower.waits();
                match device.receive(&mut request).expect("a pipe") {
                    Received::Request(len) if len > 0 => {}
                    _ => return,
                }
                let client = u32::from_ne_bytes(request[..4].try_into().expect("4 bytes"));
                let bytes = u32::from_ne_bytes(request[4..].try_into().expect("4 bytes"));
                follower.received(client, bytes);
                let looks = follower.exchange.looks.load(Ordering::Relaxed);
                outgoing
                    .write_all(&looks.to_ne_bytes())
                    .expect("somebody waits");
            }
        });
        let (reader, exchange) = receive.recv().expect("a reader");
        Some(Self {
            requests,
            answers,
            reader,
            exchange,
            thread: Some(thread),
        })
    }

    /// Asks once. The result is how often the watcher has looked until the reader answered.
    fn ask(&mut self, client: u32, bytes: u32) -> u64 {
        let before = self.exchange.looks.load(Ordering::Relaxed);
        let mut request = client.to_ne_bytes().to_vec();
        request.extend(bytes.to_ne_bytes());
        self.requests.write_all(&request).expect("a reader");
        let mut answer = [0; 8];
        self.answers.read_exact(&mut answer).expect("an answer");
        u64::from_ne_bytes(answer) - before
    }

    fn is(&self) -> (Option<Policy>, usize) {
        let processors = sched::processors(self.reader).expect("it lives");
        (sched::policy(self.reader), processors.count())
    }

    fn follows(&self) -> bool {
        self.exchange.state.load(Ordering::Acquire) == FOLLOWS
    }

    /// Asks until the reader follows.
    fn ask_until_followed(&mut self) {
        let client = this_client();
        let end = Instant::now() + PATIENCE;
        while !self.follows() {
            assert!(Instant::now() < end, "it never followed");
            self.ask(client, 0);
        }
    }

    fn wait_until_apart(&self) {
        let all = sched::processors(sched::this_thread())
            .expect("known")
            .count();
        let end = Instant::now() + PATIENCE;
        while self.is() != (Some(Policy::Normal), all) {
            assert!(Instant::now() < end, "it never came back: {:?}", self.is());
            thread::sleep(TICK);
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let (_, closed) = io::pipe().expect("a pipe");
        self.requests = closed;
        let ended = self.thread.take().map(JoinHandle::join);
        if !thread::panicking() {
            ended.expect("once").expect("the reader ends");
        }
    }
}

fn this_client() -> u32 {
    sched::this_thread().as_raw_nonzero().get() as u32
}

#[test]
fn a_reader_follows_who_asks_and_comes_back() {
    let Some(mut rig) = Rig::new("a_reader_follows_who_asks_and_comes_back") else {
        return;
    };
    for _ in 0..3 {
        rig.ask_until_followed();
        // Nobody asks any more, or it was in vain: either way it is what it was.
        rig.wait_until_apart();
    }
}

/// Threads that keep processors from others, from [`Load::begin`] on until they go out of scope.
struct Load {
    spins: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
    threads: Vec<(ThreadId, JoinHandle<()>)>,
}

impl Load {
    /// Longest time that a load lasts, should nobody end it.
    const MOST: Duration = Duration::from_secs(2);

    /// `count` threads; `None` if they cannot get a policy of real time that they should have.
    fn new(count: usize, real_time: bool) -> Option<Self> {
        let mut load = Self {
            spins: Arc::default(),
            ends: Arc::default(),
            threads: Vec::new(),
        };
        for _ in 0..count {
            let (spins, ends) = (Arc::clone(&load.spins), Arc::clone(&load.ends));
            let (send, receive) = mpsc::channel();
            let thread = thread::spawn(move || {
                let can = !real_time || sched::become_real_time();
                send.send(can.then(sched::this_thread))
                    .expect("somebody waits");
                while !spins.load(Ordering::Acquire) && !ends.load(Ordering::Acquire) {
                    thread::park();
                }
                let start = Instant::now();
                while !ends.load(Ordering::Relaxed) && start.elapsed() < Self::MOST {
                    std::hint::spin_loop();
                }
            });
            load.threads.push((sched::this_thread(), thread));
            let id = receive.recv().expect("a thread")?;
            load.threads.last_mut().expect("pushed").0 = id;
        }
        Some(load)
    }

    /// Lets the threads spin on processor `at`.
    fn begin(&self, at: usize) {
        for (id, _) in &self.threads {
            sched::set_processors(*id, &Processors::only(at));
        }
        self.spins.store(true, Ordering::Release);
        for (_, thread) in &self.threads {
            thread.thread().unpark();
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        for (_, thread) in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Looks that a request waits for at most because the reader follows.
const LONGEST: u64 = (STUCK + IDLE) as u64;
/// Rounds of asking under load, and requests of each.
const ROUNDS: usize = 3;
const REQUESTS: usize = 200;

/// Lets a reader follow, loads its processor with `threads` threads, and goes on asking. No request may
/// wait for more looks than documented.
fn ask_under_load(name: &str, threads: usize, real_time: bool) {
    let Some(mut rig) = Rig::new(name) else {
        return;
    };
    let client = this_client();
    let mut met = 0;
    for _ in 0..ROUNDS {
        let Some(load) = Load::new(threads, real_time) else {
            return redwarfs_testkit::skip(name, "needs the right to use SCHED_FIFO");
        };
        rig.ask_until_followed();
        let processors = sched::processors(rig.reader).expect("it lives");
        load.begin(processors.first().expect("one"));
        met += usize::from(rig.follows());
        for _ in 0..REQUESTS {
            let begun = Instant::now();
            let looks = rig.ask(client, 0);
            assert!(looks <= LONGEST, "a request waited for {looks} looks");
            assert!(begun.elapsed() < PATIENCE, "a request took minutes");
        }
        drop(load);
        rig.wait_until_apart();
    }
    if met == 0 {
        redwarfs_testkit::skip(name, "the reader had come back whenever the load began");
    }
}

#[test]
fn nobody_waits_longer_than_documented_on_busy_processors() {
    ask_under_load(
        "nobody_waits_longer_than_documented_on_busy_processors",
        4,
        false,
    );
}

#[test]
fn nobody_waits_longer_than_documented_beside_real_time() {
    ask_under_load(
        "nobody_waits_longer_than_documented_beside_real_time",
        1,
        true,
    );
}

#[test]
fn what_the_system_sends_by_itself_says_nothing() {
    let Some(mut rig) = Rig::new("what_the_system_sends_by_itself_says_nothing") else {
        return;
    };
    let client = this_client();
    let end = Instant::now() + PATIENCE;
    while !rig.follows() {
        assert!(Instant::now() < end, "it never followed");
        rig.ask(client, 0);
        rig.ask(0, 0);
    }
    assert_eq!(rig.exchange.client.load(Ordering::Relaxed), client);
}

/// Looks every millisecond at a program that asks `rate` times in each, `odd` of them oddly, before
/// something happens to it; what comes of it, and after how many looks.
fn watch(rate: u64, odd: u64, until: u64, waits: bool) -> (Outcome, u64) {
    let at = |n: u64| Look {
        received: n.min(until) * rate,
        odd: n.min(until) * odd,
        waits,
        near: 1_000_000u64.checked_div(rate).unwrap_or(0),
        elapsed: TICK * n as u32,
    };
    let mut judge = Judge::new(at(0), 100_000);
    (1..)
        .find_map(|n| judge.look(at(n)).map(|outcome| (outcome, n)))
        .expect("it ends some time")
}

#[test]
fn what_is_seen_decides() {
    assert_eq!(watch(20, 0, 1 << 40, true), (Outcome::Again, 2_000));
    assert_eq!(watch(20, 2, 1 << 40, true), (Outcome::Again, 2_000));
    let (outcome, looks) = watch(20, 3, 1 << 40, true);
    assert!(outcome == Outcome::Irregular && looks < 10, "{looks}");
    // A tenth quicker than 10 in a millisecond, and not quite.
    assert_eq!(watch(12, 0, 1 << 40, true), (Outcome::Again, 2_000));
    assert_eq!(watch(11, 0, 1 << 40, true), (Outcome::Vain, 25));
    // It stops after 100 ms: nobody asks, or nobody answers.
    assert_eq!(watch(20, 0, 100, true), (Outcome::Rest, 110));
    let stuck = |proven| Outcome::Stuck { proven };
    assert_eq!(watch(20, 0, 100, false), (stuck(true), 104));
    assert_eq!(watch(20, 0, 10, false), (stuck(false), 14));
    // Before the first request.
    assert_eq!(watch(0, 0, 0, true), (Outcome::Rest, 10));
}

#[test]
fn a_reader_does_not_follow_several_programs_or_large_reads() {
    let Some(mut rig) = Rig::new("a_reader_does_not_follow_several_programs_or_large_reads") else {
        return;
    };
    let client = this_client();
    for n in 0..2_000 {
        rig.ask(client, if n % 4 == 0 { SMALL + 1 } else { 0 });
    }
    for n in 0..2_000 {
        rig.ask(if n % 4 == 0 { 1 } else { client }, 0);
    }
    assert_eq!(rig.exchange.state.load(Ordering::Acquire), APART);
    // No window was one to judge by.
    assert_eq!(rig.exchange.apart.load(Ordering::Relaxed), 0);
    assert!(rig.exchange.odd.load(Ordering::Relaxed) >= 1_000);
}
