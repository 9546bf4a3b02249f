use super::*;

#[test]
fn names_are_those_of_the_option() {
    for component in Component::ALL {
        assert_eq!(component.name().parse(), Ok(component));
        assert_eq!(component.to_string(), component.name());
    }
    assert!(Component::ALL.map(Component::name).is_sorted());
    let e = "block".parse::<Component>().unwrap_err().to_string();
    assert!(e.contains("block_cache"), "{e}");
}

#[test]
fn off_collects_nothing() {
    for monitor in [PerfMonitor::off(), PerfMonitor::new(&[], true)] {
        assert!(!monitor.is_on());
        drop(monitor.timer(Component::Fuse, "op_read").start());
        assert_eq!(monitor.summary(), None);
        let mut out = Vec::new();
        monitor.write_trace(&mut out).unwrap();
        assert_eq!(out, b"[\n]\n");
        assert_eq!(monitor, PerfMonitor::default());
    }
}

#[test]
fn only_chosen_components_are_timed_and_shown() {
    let monitor = PerfMonitor::new(&[Component::BlockCache, Component::Fuse], false);
    assert!(monitor.is_on());
    assert_eq!(monitor.summary().as_deref(), Some(""));
    let get = monitor.timer(Component::BlockCache, "get");
    let same = monitor.timer(Component::BlockCache, "get");
    let unused = monitor.timer(Component::BlockCache, "process");
    let other = monitor.timer(Component::Filesystem, "read");
    drop(get.start());
    drop(same.start_with(&[("block", 7)]));
    drop(other.start());
    get.start().discard();
    drop(unused);
    let text = monitor.summary().unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "[block_cache.get]");
    assert_eq!(lines[1], "      samples: 2");
    for (line, start) in lines[2..7].iter().zip([
        "      overall: ",
        "  avg latency: ",
        "  p50 latency: ",
        "  p90 latency: ",
        "  p99 latency: ",
    ]) {
        assert!(line.starts_with(start) && line.ends_with('s'), "{line}");
    }
    assert_eq!(lines[7..], [""]);
    assert_ne!(monitor, PerfMonitor::new(&[Component::Fuse], false));
    assert_eq!(monitor, monitor.clone());
}

#[test]
fn components_by_name_and_timers_by_total() {
    let monitor = PerfMonitor::new(&Component::ALL, false);
    for (component, name, ms) in [
        (Component::InodeReader, "read", 9),
        (Component::Fuse, "op_read", 1),
        (Component::Fuse, "op_open", 5),
        (Component::Filesystem, "find_path", 1),
    ] {
        let timer = monitor.timer(component, name);
        let recorder = timer.0.as_ref().unwrap();
        lock(&recorder.latency).add(Duration::from_millis(ms));
    }
    let text = monitor.summary().unwrap();
    let heads: Vec<&str> = text.lines().filter(|line| line.starts_with('[')).collect();
    assert_eq!(
        heads,
        [
            "[filesystem_v2.find_path]",
            "[fuse.op_open]",
            "[fuse.op_read]",
            "[inode_reader_v2.read]",
        ]
    );
}

#[test]
fn a_trace_nests_and_names_its_context() {
    let monitor = PerfMonitor::new(&[Component::Fuse, Component::BlockCache], true);
    let outer = monitor.timer(Component::Fuse, "op_read");
    let inner = monitor.timer(Component::BlockCache, "get");
    {
        let _outer = outer.start_with(&[("inode", 6), ("size", 4096)]);
        let _inner = inner.start();
    }
    let inner = inner.clone();
    std::thread::spawn(move || drop(inner.start()))
        .join()
        .unwrap();
    let mut out = Vec::new();
    monitor.write_trace(&mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 8, "{text}");
    assert_eq!((lines[0], lines[7]), ("[", "]"));
    let pid = std::process::id();
    let begin = r#"{"name": "op_read(6, 4096)", "cat": "fuse", "ph": "B", "ts": "#;
    assert!(lines[1].starts_with(begin), "{text}");
    let end = format!(r#", "pid": {pid}, "tid": 1, "args": {{"inode": 6, "size": 4096}}}},"#);
    assert!(lines[1].ends_with(&end), "{text}");
    assert!(lines[2].starts_with(r#"{"name": "get", "cat": "block_cache", "ph": "B""#));
    assert!(lines[3].contains(r#""name": "get", "cat": "block_cache", "ph": "E""#));
    assert!(lines[4].contains(r#""name": "op_read(6, 4096)", "cat": "fuse", "ph": "E""#));
    assert!(!lines[4].contains("args"));
    assert!(lines[5].contains(r#""tid": 2"#), "{text}");
    assert!(!lines[6].ends_with(','));
}

#[test]
fn a_trace_is_bounded_and_says_so() {
    let monitor = PerfMonitor::new(&[Component::Fuse], true);
    let trace = monitor.0.as_ref().unwrap().trace.as_ref().unwrap();
    let sample = Sample {
        component: Component::Fuse,
        name: "op_read",
        begin: Duration::from_micros(5),
        duration: Duration::ZERO,
        context: Context::default(),
    };
    for _ in 0..TRACE_LIMIT + 3 {
        trace.add(sample.clone());
    }
    let mut out = Vec::new();
    monitor.write_trace(&mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text.lines().count(), 2 * TRACE_LIMIT + 3);
    assert!(text.contains("\"3 operations left out\""));
}

#[test]
fn durations_are_cut_to_four_digits() {
    for (ns, text) in [
        (0, "0s"),
        (7, "7ns"),
        (999, "999ns"),
        (3_967, "3.967us"),
        (137_799, "137.7us"),
        (2_479_000, "2.479ms"),
        (20_000_000, "20ms"),
        (1_000_500_000, "1s"),
        (125_000_000_000, "125s"),
    ] {
        assert_eq!(short(Duration::from_nanos(ns)), text);
    }
}
