use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    hex.split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect()
}

#[test]
fn varints_are_limited_to_their_width() {
    #[rustfmt::skip]
    let table: &[(&str, u32, Option<u64>)] = &[
        ("00", 16, Some(0)),
        ("80 01", 16, Some(128)),
        ("ff ff 03", 16, Some(65535)),
        ("ff ff 04", 16, None),
        ("80 80 00", 16, Some(0)),
        ("80 80 80 00", 16, None),
        ("ff ff ff ff 0f", 32, Some(0xffff_ffff)),
        ("ff ff ff ff 10", 32, None),
        ("ff ff ff ff 07", 31, Some(0x7fff_ffff)),
        ("ff ff ff ff 08", 31, None),
        ("ff ff ff ff ff ff ff ff ff 01", 64, Some(u64::MAX)),
        ("ff ff ff ff ff ff ff ff ff 02", 64, None),
        ("ff ff ff ff ff ff ff ff ff 81 00", 64, None),
        ("80", 64, None),
        ("", 64, None),
    ];
    for (hex, bits, want) in table {
        let data = bytes(hex);
        let got = Reader::new(&data).read_varint(*bits).ok();
        assert_eq!(got, *want, "{hex} as {bits} bits");
    }
}

#[test]
fn zigzag_of_the_description() {
    for (raw, value) in [(0, 0), (1, -1), (2, 1), (3, -2), (4, 2)] {
        assert_eq!(Reader::new(&[raw]).read_i16().unwrap(), value);
        assert_eq!(Reader::new(&[raw]).read_i32().unwrap(), i32::from(value));
        assert_eq!(Reader::new(&[raw]).read_i64().unwrap(), i64::from(value));
    }
    let mut writer = Writer::new();
    writer.write(&u16::MAX);
    assert_eq!(writer.into_bytes(), [1]);
}

#[test]
fn schema_of_old_releases_starts_with_long_field_ids() {
    let mut writer = Writer::new();
    writer.write_struct(|s| {
        s.put(4, &1_i32);
        s.put(1, &true);
        s.put_map(2, Type::I16, Type::Struct, [(0_i16, ())], |w, (key, ())| {
            w.write(&key);
            w.write_struct(|_| {});
        });
    });
    let data = writer.into_bytes();
    assert_eq!(data, bytes("45 02 01 02 1b 01 4c 00 00 00"));
    let (mut version, mut relax) = (0_i32, false);
    let mut layouts = BTreeMap::<i16, ()>::new();
    let mut reader = Reader::new(&data);
    reader
        .read_struct(|id, value| match id {
            4 => value.store(&mut version),
            1 => value.store(&mut relax),
            2 => value.store_map(Type::Struct, &mut layouts, |r| r.skip(Type::Struct)),
            _ => Ok(()),
        })
        .unwrap();
    assert_eq!((version, relax, layouts.len()), (1, true, 1));
    assert!(reader.is_empty());
}

/// Fields 1 (i32), 2 (list of i32), 3 (map i16 -> i16), 4 (set of strings).
#[derive(Debug, PartialEq, Eq, Default, Clone)]
struct Sample {
    number: i32,
    list: Vec<i32>,
    map: BTreeMap<i16, i16>,
    set: Vec<String>,
}

impl Sample {
    fn read(data: &[u8]) -> Result<Self> {
        let mut out = Self {
            number: 7,
            list: vec![7],
            ..Self::default()
        };
        Reader::new(data).read_struct(|id, value| match id {
            1 => value.store(&mut out.number),
            2 => value.store_list(Type::I32, &mut out.list, |value| {
                let mut item = 0;
                value.store(&mut item)?;
                Ok(item)
            }),
            3 => value.store_map(Type::I16, &mut out.map, Reader::read_i16),
            4 => value
                .store_set(|item| {
                    out.set.push(item);
                    Ok(())
                })
                .map(drop),
            _ => Ok(()),
        })?;
        Ok(out)
    }
}

#[test]
fn mismatches_are_skipped() {
    let default = Sample::read(&[0]).unwrap();
    assert_eq!((default.number, &default.list[..]), (7, &[7][..]));
    let with = |f: &dyn Fn(&mut Sample)| {
        let mut sample = default.clone();
        f(&mut sample);
        sample
    };
    let table: &[(&str, &str, Sample)] = &[
        (
            "field of other type keeps its default",
            "14 04 00",
            default.clone(),
        ),
        ("boolean where a number belongs", "11 00", default.clone()),
        (
            "list where a number belongs",
            "19 25 02 04 00",
            default.clone(),
        ),
        (
            "list of other element type is empty",
            "29 24 02 04 00",
            with(&|s| s.list.clear()),
        ),
        (
            "list of boolean elements is empty",
            "29 31 01 02 01 00",
            with(&|s| s.list.clear()),
        ),
        ("set where a list belongs", "2a 15 02 00", default.clone()),
        (
            "last field wins",
            "15 02 05 02 04 00",
            with(&|s| s.number = 2),
        ),
        (
            "first map entry wins",
            "3b 03 44 02 04 02 06 04 08 00",
            with(&|s| s.map = [(1, 2), (2, 4)].into()),
        ),
        (
            "map of other value type is empty",
            "3b 01 45 02 04 00",
            default.clone(),
        ),
        ("empty map has no type byte", "3b 00 00", default.clone()),
        ("set", "4a 18 01 61 00", with(&|s| s.set = vec!["a".into()])),
        (
            "unknown fields of every kind",
            "a3 ff 14 04 15 02 16 02 17 00 00 00 00 00 00 00 00 18 02 61 62 1d 00 00 00 00 00 00 \
             00 00 00 00 00 00 00 00 00 00 1c 15 02 00 1b 01 88 00 00 1a 11 02 11 12 00",
            default.clone(),
        ),
    ];
    for (what, hex, want) in table {
        assert_eq!(&Sample::read(&bytes(hex)).unwrap(), want, "{what}");
    }
}

#[test]
fn damaged_data_is_an_error() {
    for (what, hex) in [
        ("no stop", "15 02"),
        ("type 14", "1e 00"),
        ("type 15", "1f 00"),
        ("type 0 with a delta", "10 00"),
        ("string beyond the end", "98 05 61 00"),
        ("count beyond the end", "29 f5 ff ff ff ff 07 02 00"),
        ("count of 32 bits", "29 f5 ff ff ff ff 0f 02 00"),
        ("map count beyond the end", "3b ff ff ff ff 07 44 02 00"),
        ("skipped list beyond the end", "99 f5 ff ff ff ff 07 02 00"),
        ("boolean element 3", "99 11 03 00"),
        ("field id overflow", "03 fe ff 03 00 13 00 00"),
    ] {
        assert!(Sample::read(&bytes(hex)).is_err(), "{what}");
    }
}

#[test]
fn nesting_is_limited() {
    let nested = |depth: usize| {
        let mut data = vec![0x9c; depth];
        data.extend(vec![0; depth + 1]);
        data
    };
    assert!(Sample::read(&nested(MAX_NESTING as usize - 1)).is_ok());
    assert!(Sample::read(&nested(MAX_NESTING as usize)).is_err());
    assert!(Sample::read(&vec![0x9c; 1 << 20]).is_err());
    assert!(Sample::read(&[&[0x99][..], &vec![0x19; 1 << 20]].concat()).is_err());
    let maps = [&[0x9b][..], &[0x01, 0xbb].repeat(1 << 20)].concat();
    assert!(Sample::read(&maps).is_err());
}

proptest! {
    #[test]
    fn scalars_round_trip(
        b: bool, i in any::<(i8, i16, i32, i64)>(), u in any::<(u8, u16, u32, u64)>(),
        text: String, raw: Vec<u8>, ids in proptest::sample::subsequence(
            (-40..40).chain([i16::MIN, i16::MAX]).collect::<Vec<i16>>(), 11).prop_shuffle(),
    ) {
        let mut writer = Writer::new();
        writer.write_struct(|s| {
            s.put(ids[0], &b);
            s.put(ids[1], &i.0);
            s.put(ids[2], &i.1);
            s.put(ids[3], &i.2);
            s.put(ids[4], &i.3);
            s.put(ids[5], &u.0);
            s.put(ids[6], &u.1);
            s.put(ids[7], &u.2);
            s.put(ids[8], &u.3);
            s.put(ids[9], &text);
            s.put(ids[10], &raw);
        });
        let data = writer.into_bytes();
        let mut got = (None, (None, None, None, None), (None, None, None, None), None, None);
        let mut reader = Reader::new(&data);
        reader.read_struct(|id, value| match ids.iter().position(|&other| other == id) {
            Some(0) => value.store(&mut got.0),
            Some(1) => value.store(&mut got.1.0),
            Some(2) => value.store(&mut got.1.1),
            Some(3) => value.store(&mut got.1.2),
            Some(4) => value.store(&mut got.1.3),
            Some(5) => value.store(&mut got.2.0),
            Some(6) => value.store(&mut got.2.1),
            Some(7) => value.store(&mut got.2.2),
            Some(8) => value.store(&mut got.2.3),
            Some(9) => value.store(&mut got.3),
            Some(10) => value.store(&mut got.4),
            _ => panic!("field {id} was not written"),
        }).unwrap();
        prop_assert!(reader.is_empty());
        let want = (
            Some(b),
            (Some(i.0), Some(i.1), Some(i.2), Some(i.3)),
            (Some(u.0), Some(u.1), Some(u.2), Some(u.3)),
            Some(text),
            Some(raw),
        );
        prop_assert_eq!(got, want);
        // Nobody wants any of the fields.
        let mut reader = Reader::new(&data);
        reader.skip(Type::Struct).unwrap();
        prop_assert!(reader.is_empty());
    }

    #[test]
    fn containers_round_trip(list: Vec<i32>, map: BTreeMap<i16, i16>, number: i32) {
        let mut writer = Writer::new();
        writer.write_struct(|s| {
            s.put(1, &number);
            s.put_list(2, Type::I32, &list, Writer::write);
            s.put_map(3, Type::I16, Type::I16, &map, |w, (key, value)| {
                w.write(key);
                w.write(value);
            });
            s.put_set(4, Type::Binary, &["x".to_owned()], Writer::write);
        });
        let want = Sample { number, list, map, set: vec!["x".into()] };
        prop_assert_eq!(Sample::read(&writer.into_bytes()).unwrap(), want);
    }

    #[test]
    fn random_data_does_no_harm(data in proptest::collection::vec(0..=0x1f_u8, 0..200)) {
        let _ = Sample::read(&data);
        let _ = crate::history::History::parse(&data);
    }
}
