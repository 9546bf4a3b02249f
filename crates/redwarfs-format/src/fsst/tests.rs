use proptest::prelude::*;

use super::*;

/// The example of format chapter 04 section 8.1.
fn example() -> Vec<u8> {
    let mut table = vec![1, 4, 0, 0, 0x0a, 0x14, 0x34, 0x01, 0];
    table.extend([1, 2, 0, 1, 0, 0, 0, 0]);
    table.extend(b"lib/usr//");
    table
}

fn compress(table: &SymbolTable, input: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    table.compress(input, &mut out);
    out
}

fn decompress(table: &SymbolTable, input: &[u8]) -> Result<Vec<u8>> {
    let mut out = b"before".to_vec();
    table.decompress(input, &mut out)?;
    assert!(out.starts_with(b"before"));
    Ok(out.split_off(6))
}

#[test]
fn example_of_the_description() {
    let table = SymbolTable::parse(&example()).unwrap();
    let codes = [2, 0, 1, 0xff, 0x78];
    assert_eq!(decompress(&table, &codes).unwrap(), b"usr/lib/x");
    assert_eq!(compress(&table, b"usr/lib/x"), codes);
    assert_eq!(compress(&table, b"/li/"), [3, 0, 3]);
    assert_eq!(compress(&table, b"/l"), [3, 0xff, b'l']);
    assert_eq!(table.encode_table(), example());
}

#[test]
fn escapes_and_bad_codes() {
    let table = SymbolTable::parse(&example()).unwrap();
    assert_eq!(decompress(&table, &[255, 255]).unwrap(), [255]);
    assert_eq!(decompress(&table, &[]).unwrap(), []);
    assert!(decompress(&table, &[255]).is_err());
    assert!(decompress(&table, &[255, 255, 255]).is_err());
    assert!(decompress(&table, &[4]).is_err());
    assert!(decompress(&table, &[254]).is_err());
    let long = decompress(&table, &[2; 1000]).unwrap();
    assert_eq!(long, b"usr/".repeat(1000));
}

#[test]
fn tables_are_checked() {
    let with = |at: usize, value: u8| {
        let mut table = example();
        table[at] = value;
        SymbolTable::parse(&table)
    };
    for hint in 0..4 {
        assert!(with(hint, 99).is_ok());
    }
    assert!(matches!(with(5, 0), Err(Error::Unsupported(_))));
    assert!(matches!(with(8, 1), Err(Error::Unsupported(_))));
    assert!(with(9, 0).is_err());
    assert!(with(9, 2).is_err());
    assert!(with(16, 1).is_err());
    for length in 0..example().len() {
        assert!(SymbolTable::parse(&example()[..length]).is_err());
    }
    let full = |singles: u8, pairs: u8| {
        let mut table = example()[..9].to_vec();
        table.extend([singles, pairs, 0, 0, 0, 0, 0, 0]);
        table.extend(vec![b'a'; usize::from(singles) + 2 * usize::from(pairs)]);
        SymbolTable::parse(&table)
    };
    assert!(full(255, 0).is_ok());
    assert!(full(255, 1).is_err());
    assert!(full(128, 128).is_err());
    // Equal symbols are odd but harmless.
    let table = full(128, 127).unwrap();
    assert_eq!(compress(&table, b"aaa"), [0, 127]);
    assert_eq!(decompress(&table, &[126, 254]).unwrap(), b"aaa");
}

fn names() -> Vec<Vec<u8>> {
    let stems = [
        "lib",
        "libfoo",
        "include",
        "CMakeLists",
        "test_",
        "main",
        "module",
        "README",
    ];
    let tails = [
        ".so",
        ".so.1",
        ".h",
        ".txt",
        ".cpp",
        ".py",
        ".md",
        "-dev",
        "_config.json",
    ];
    let mut names = Vec::new();
    for number in 0..40 {
        for stem in stems {
            for tail in tails {
                names.push(format!("{stem}{}{tail}", number * number).into_bytes());
            }
        }
    }
    names
}

fn total(table: &SymbolTable, strings: &[&[u8]]) -> usize {
    strings
        .iter()
        .map(|string| compress(table, string).len())
        .sum::<usize>()
        + table.encode_table().len()
}

#[test]
fn training_is_worth_it_and_repeatable() {
    let names = names();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let plain: usize = names.iter().map(|name| name.len()).sum();
    let table = SymbolTable::train(&names);
    let size = total(&table, &names);
    assert!(size * 5 < plain * 2, "{size} of {plain}");
    assert_eq!(
        SymbolTable::train(&names).encode_table(),
        table.encode_table()
    );
    // More than is looked at: the sample must still be representative.
    let many: Vec<&[u8]> = names.iter().copied().cycle().take(200_000).collect();
    let plain: usize = many.iter().map(|name| name.len()).sum();
    let size = total(&SymbolTable::train(&many), &many);
    assert!(size * 5 < plain * 2, "{size} of {plain}");
}

#[test]
fn nothing_to_learn() {
    let empty = SymbolTable::train(&[]);
    assert_eq!(empty.encode_table().len(), SYMBOLS_AT);
    assert_eq!(
        SymbolTable::train(&[b"", b"abc"]).encode_table().len(),
        SYMBOLS_AT
    );
    assert_eq!(compress(&empty, b"ab"), [255, b'a', 255, b'b']);
    let one = vec![b'x'; 1 << 20];
    let table = SymbolTable::train(&[&one]);
    assert_eq!(compress(&table, &one).len(), one.len() / 8);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn round_trip(
        known in proptest::collection::vec("[a-f]{0,20}", 0..60),
        binary in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..30), 0..20),
        other in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let strings: Vec<&[u8]> = known.iter().map(String::as_bytes)
            .chain(binary.iter().map(Vec::as_slice)).collect();
        let table = SymbolTable::train(&strings);
        let serialized = table.encode_table();
        let parsed = SymbolTable::parse(&serialized).unwrap();
        prop_assert_eq!(parsed.encode_table(), serialized);
        prop_assert_eq!(&parsed, &table);
        for string in strings.iter().copied().chain([&other[..]]) {
            let compressed = compress(&table, string);
            prop_assert!(compressed.len() <= 2 * string.len());
            prop_assert_eq!(&compress(&parsed, string), &compressed);
            prop_assert_eq!(decompress(&parsed, &compressed).unwrap(), string);
        }
    }

    #[test]
    fn random_input_does_no_harm(
        counts in proptest::collection::vec(0..20_u8, 8),
        bytes in proptest::collection::vec(any::<u8>(), 36 * 19),
        input in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let length: usize = (1..).zip(&counts).map(|(l, &c)| l * usize::from(c)).sum();
        let mut serialized = example()[..9].to_vec();
        serialized.extend(&counts);
        serialized.extend(&bytes[..length]);
        let table = SymbolTable::parse(&serialized).unwrap();
        serialized[1..4].copy_from_slice(&[counts.iter().sum(), 0, 0]);
        prop_assert_eq!(table.encode_table(), serialized);
        let _ = decompress(&table, &input);
        prop_assert_eq!(decompress(&table, &compress(&table, &input)).unwrap(), input);
    }
}
