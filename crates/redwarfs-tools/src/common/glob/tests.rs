use super::*;
use proptest::prelude::*;

fn glob(pattern: &str) -> Glob {
    Glob::new(pattern.as_bytes(), false).unwrap_or_else(|e| panic!("{e}"))
}

/// Checks a pattern against paths that it matches and others that it does not.
fn check(pattern: &str, yes: &[&str], no: &[&str]) {
    for (paths, wanted) in [(yes, true), (no, false)] {
        for path in paths {
            let found = glob(pattern).matches(path.as_bytes());
            assert_eq!(found, wanted, "{pattern} on {path}");
        }
    }
}

#[test]
fn tokens() {
    check("", &[""], &["a"]);
    check("a,b", &["a,b"], &["a", "b"]);
    check("d/?", &["d/x", "d/ä", "d/€", "d/?"], &["d/", "d/xy", "d//"]);
    check("*", &["x", ".x"], &["", "a/b"]);
    check("a/*", &["a/x"], &["a/", "a/b/c"]);
    check("*/x", &["a/x"], &["/x", "x", "a/b/x"]);
    check("a*", &["a", "ab"], &["a/"]);
    check("a/*{/x,}", &["a/", "a/b/x", "a/b"], &["a/b/y"]);
    check("**", &["", "a", "a/b/.c"], &[]);
    check("**/x", &["x", "a/x", "a/b/x", "abcx"], &["", "a/y"]);
    check("a/**/x", &["a/x", "a/b/x", "a/bx"], &["ax", "b/a/x"]);
    check("a**/x", &["a/x", "ab/x", "a/b/x"], &["ax"]);
    check("***/x", &["a/x", "/x"], &["x"]);
    check("{**/}x", &["a/x", "/x"], &["x"]);
    check("[]]", &["]"], &["["]);
    check("[!]]", &["[", "ä"], &["]", ""]);
    check("[^a]", &["^", "a"], &["b"]);
    check("[a\\-z]", &["\\", "]", "z"], &["-", "A"]);
    check("[a-c-e]", &["a", "b", "-", "e"], &["d"]);
    check("[+-0]", &["+", "-", ".", "0"], &["/", "1"]);
    check("[a-]", &["a", "-"], &["b"]);
    check("[à-ö]", &["é"], &["a", "\u{fa}"]);
    check("{a,b{c,d},}", &["a", "bc", "bd", ""], &["b", "ac"]);
    check("{a,{b,B}}x", &["ax", "bx", "Bx"], &["x", "abx"]);
    check("{[,]}", &[","], &[""]);
    check("{x}*.{txt,md}", &["x.txt", "xy.md"], &["y.txt", "x.t"]);
    check(
        "\\*\\{\\\\\\a\\,",
        &["*{\\a,"],
        &["x{\\a,", "\\*\\{\\\\\\a\\,"],
    );
    check("**/ä*/[!a]", &["xä/b", "ä/b"], &["a/b"]);
}

#[test]
fn a_set_that_excludes_may_stand_for_a_slash_but_nothing_else_does() {
    check("a[!b]x", &["a/x"], &["abx"]);
    check("a?x", &[], &["a/x"]);
}

#[test]
fn errors() {
    for (pattern, text) in [
        ("d/[", "unmatched '[' in pattern: d/["),
        ("[]", "unmatched '[' in pattern: []"),
        ("[!]", "unmatched '[' in pattern: [!]"),
        ("d/]", "unmatched ']' in pattern: d/]"),
        ("[\\]]", "unmatched ']' in pattern: [\\]]"),
        ("{a,{b}", "unmatched '{' in pattern: {a,{b}"),
        ("a}", "unmatched '}' in pattern: a}"),
        ("a\\", "trailing backslash in pattern: a\\"),
        (
            "[z-a]",
            "invalid range 'z-a' in character class in pattern: [z-a]",
        ),
        (
            "[a/b]",
            "invalid character '/' in character class in pattern: [a/b]",
        ),
        (
            "[a-/]",
            "invalid character '/' in character class in pattern: [a-/]",
        ),
    ] {
        let error = Glob::new(pattern.as_bytes(), false).map(|_| ());
        assert_eq!(error.map_err(|e| e.to_string()), Err(text.to_owned()));
    }
}

#[test]
fn bytes_that_are_no_text() {
    let stray = |pattern: &[u8], path: &[u8]| Glob::new(pattern, true).unwrap().matches(path);
    assert!(stray(b"d/?", b"d/\xff"));
    assert!(stray(b"d/\xff", b"d/\xff"));
    assert!(stray(b"d/*", b"d/a\xc3/".strip_suffix(b"/").unwrap()));
    assert!(stray(b"[\xfe-\xff]", b"\xff"));
    assert!(!stray(b"\xc3*", "ä".as_bytes()));
    assert!(!stray(b"[a-z]", b"\xff"));
    assert!(stray(b"\\\xff", b"\xff"));
    let error = Glob::new(b"[\xff-a]", false).unwrap_err().to_string();
    assert!(error.starts_with("invalid range '\\xff-a'"), "{error}");
}

#[test]
fn case() {
    let fits = |pattern: &str, path: &str| {
        Glob::new(pattern.as_bytes(), true)
            .unwrap()
            .matches(path.as_bytes())
    };
    for (pattern, path) in [
        ("d/y.txt", "D/Y.TXT"),
        ("Ä", "ä"),
        ("σας", "ΣΑΣ"),
        ("ß", "ẞ"),
        ("[a-z]", "Q"),
        ("[A-Z]", "q"),
        ("[Ä]", "ä"),
        ("k", "\u{212a}"),
        ("[\u{212a}]", "K"),
        ("[!b]", "a"),
    ] {
        assert!(fits(pattern, path), "{pattern} {path}");
    }
    assert!(!fits("[!b]", "B"));
    assert!(!fits("i", "\u{130}") && !fits("I", "\u{131}"));
    assert!(!glob("a").matches(b"A"));
}

#[test]
fn folding_is_that_of_the_unicode_tables() {
    // The tables of the oracle may be older than those of the standard library.
    let assigned = regex::Regex::new(r"^\P{Cn}$").unwrap();
    let cased = (0..0x2_0000)
        .filter_map(char::from_u32)
        .filter(|&c| fold(c.into()) != u32::from(c))
        .filter(|c| assigned.is_match(c.encode_utf8(&mut [0; 4])));
    let mut count = 0;
    for c in cased {
        let folded = char::from_u32(fold(c.into())).unwrap();
        let oracle = regex::Regex::new(&format!("(?i)^{folded}$")).unwrap();
        assert!(oracle.is_match(c.encode_utf8(&mut [0; 4])), "{c} {folded}");
        count += 1;
    }
    assert!(count > 1000, "{count}");
}

#[test]
fn plain_patterns() {
    for plain in ["a/b", "", "a,b", "\\*", "ä"] {
        assert!(glob(plain).is_plain(), "{plain}");
    }
    for other in ["a*", "a?", "[a]", "{a}"] {
        assert!(!glob(other).is_plain(), "{other}");
    }
}

#[test]
fn no_pattern_takes_long() {
    let path = "a".repeat(2000);
    for pattern in [
        "**a".repeat(300) + "b",
        "*a".repeat(300) + "b",
        "{a,a}".repeat(300) + "b",
        "{*,**}".repeat(300) + "b",
        "{".repeat(2000) + &"}".repeat(2000) + "b",
        "{,".repeat(1000) + "a" + &"}".repeat(1000) + "b",
    ] {
        assert!(!glob(&pattern).matches(path.as_bytes()));
    }
}

/// The same language by way of a regular expression; straight from the table above.
fn translate(pattern: &str) -> String {
    let chars: Vec<char> = pattern.chars().collect();
    let mut out = "(?s)^".to_owned();
    let mut depth = 0;
    let mut i = 0;
    while i < chars.len() {
        let previous = if i == 0 { '/' } else { chars[i - 1] };
        let rest: String = chars[i..].iter().collect();
        if rest.starts_with("**/") && previous == '/' {
            out += ".*";
            i += 3;
        } else if rest.starts_with("**") {
            out += ".*";
            i += 2;
        } else if rest.starts_with('*') {
            let whole = previous == '/' && chars.get(i + 1).is_none_or(|&c| c == '/');
            out += if whole { "[^/]+" } else { "[^/]*" };
            i += 1;
        } else if rest.starts_with('[') {
            let negated = rest.starts_with("[!");
            let from = i + 1 + usize::from(negated);
            let to = from + 1 + chars[from + 1..].iter().position(|&c| c == ']').unwrap();
            let mut j = from;
            out += if negated { "[^" } else { "[" };
            let point = |c: char| format!("\\x{{{:x}}}", u32::from(c));
            while j < to {
                if j + 2 < to && chars[j + 1] == '-' {
                    out += &format!("{}-{}", point(chars[j]), point(chars[j + 2]));
                    j += 3;
                } else {
                    out += &point(chars[j]);
                    j += 1;
                }
            }
            out += "]";
            i = to + 1;
        } else {
            match chars[i] {
                '?' => out += "[^/]",
                '{' => {
                    depth += 1;
                    out += "(?:";
                }
                '}' => {
                    depth -= 1;
                    out += ")";
                }
                ',' if depth > 0 => out += "|",
                '\\' => {
                    i += 1;
                    out += &regex::escape(&chars[i].to_string());
                }
                c => out += &regex::escape(&c.to_string()),
            }
            i += 1;
        }
    }
    out + "$"
}

fn piece() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        4 => "[a-cA-C/.]",
        2 => Just("*".to_owned()),
        1 => Just("**".to_owned()),
        1 => Just("**/".to_owned()),
        1 => Just("?".to_owned()),
        1 => "\\[!?[]abä][ab]?(a-c)?(Z-a)?\\]",
        1 => "\\\\[a*{}?,]",
        1 => "[äÄβ,]",
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        proptest::collection::vec(proptest::collection::vec(inner, 0..4), 1..4).prop_map(
            |alternatives| {
                let texts: Vec<String> = alternatives.into_iter().map(|a| a.concat()).collect();
                format!("{{{}}}", texts.join(","))
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn equals_a_regular_expression(
        pieces in proptest::collection::vec(piece(), 0..6),
        paths in proptest::collection::vec("[a-cA-C/.äÄβ*,]{0,8}", 12),
        ignore_case: bool,
    ) {
        let pattern = pieces.concat();
        let own = Glob::new(pattern.as_bytes(), ignore_case).unwrap();
        let oracle = regex::RegexBuilder::new(&translate(&pattern))
            .case_insensitive(ignore_case)
            .build()
            .unwrap();
        for path in paths {
            prop_assert_eq!(
                own.matches(path.as_bytes()), oracle.is_match(&path), "{} on {}", pattern, path
            );
        }
    }

    #[test]
    fn any_text_is_a_pattern_or_an_error(
        pattern in proptest::collection::vec(any::<u8>(), 0..40),
        path in proptest::collection::vec(any::<u8>(), 0..40),
        ignore_case: bool,
    ) {
        if let Ok(glob) = Glob::new(&pattern, ignore_case) {
            let _ = glob.matches(&path);
        }
    }
}
