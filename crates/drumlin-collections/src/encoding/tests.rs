//! Tests the rules of [`Key`] on random values of each type, and the decoding of corrupted bytes.

use std::cmp::{Ordering, Reverse};
use std::fmt::Debug;
use std::ops::Bound;
use std::time::{Duration, SystemTime};

use drumlin_testing::Random;

use super::{EncodeAs, Key, KeyBounds, PrefixOf, encoded};

/// Generates random values: many that differ only slightly, the extreme values of the type, and common prefixes.
trait Drawn: Sized {
    fn draw(random: &mut Random) -> Self;
}

macro_rules! drawn_numbers {
    ($($number:ident)*) => {$(
        impl Drawn for $number {
            fn draw(random: &mut Random) -> $number {
                let any = (u128::from(random.next()) << 64 | u128::from(random.next())) as $number;
                let small = (random.below(5) as $number).wrapping_sub(2);
                let shift = random.below($number::BITS.into()) as u32;
                [any, small, any >> shift, $number::MAX, $number::MIN][random.index(5)]
            }
        }
    )*};
}

drawn_numbers!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128);

impl Drawn for f64 {
    fn draw(random: &mut Random) -> f64 {
        let special = [0.0, -0.0, f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE, 1.5, -1.5];
        if random.chance(40) { special[random.index(special.len())] } else { f64::from_bits(random.next()) }
    }
}

impl Drawn for f32 {
    fn draw(random: &mut Random) -> f32 {
        if random.chance(40) { f64::draw(random) as f32 } else { f32::from_bits(random.next() as u32) }
    }
}

impl Drawn for bool {
    fn draw(random: &mut Random) -> bool {
        random.chance(50)
    }
}

impl Drawn for char {
    fn draw(random: &mut Random) -> char {
        let letters = ['\0', '\u{1}', 'a', 'b', '\u{7F}', 'ä', '\u{FFFF}', '\u{10FFFF}'];
        letters[random.index(letters.len())]
    }
}

impl Drawn for String {
    fn draw(random: &mut Random) -> String {
        (0..random.below(5)).map(|_| char::draw(random)).collect()
    }
}

impl Drawn for Vec<u8> {
    fn draw(random: &mut Random) -> Vec<u8> {
        (0..random.below(5)).map(|_| [0, 1, 0xFE, 0xFF, b'a'][random.index(5)]).collect()
    }
}

impl Drawn for Duration {
    fn draw(random: &mut Random) -> Duration {
        Duration::new(u64::draw(random), random.below(1_000_000_000) as u32)
    }
}

impl Drawn for SystemTime {
    fn draw(random: &mut Random) -> SystemTime {
        let part = [Duration::ZERO, Duration::from_nanos(random.next()), Duration::from_secs(random.below(1 << 40))];
        let part = part[random.index(3)];
        if random.chance(50) { SystemTime::UNIX_EPOCH + part } else { SystemTime::UNIX_EPOCH - part }
    }
}

impl<K: Drawn> Drawn for Option<K> {
    fn draw(random: &mut Random) -> Option<K> {
        random.chance(70).then(|| K::draw(random))
    }
}

impl<K: Drawn> Drawn for Reverse<K> {
    fn draw(random: &mut Random) -> Reverse<K> {
        Reverse(K::draw(random))
    }
}

impl<K: Drawn, const N: usize> Drawn for [K; N] {
    fn draw(random: &mut Random) -> [K; N] {
        std::array::from_fn(|_| K::draw(random))
    }
}

impl<A: Drawn, B: Drawn> Drawn for (A, B) {
    fn draw(random: &mut Random) -> (A, B) {
        (A::draw(random), B::draw(random))
    }
}

impl<A: Drawn, B: Drawn, C: Drawn> Drawn for (A, B, C) {
    fn draw(random: &mut Random) -> (A, B, C) {
        (A::draw(random), B::draw(random), C::draw(random))
    }
}

/// Checks the rules for one type: its encodings sort like its values, decode to the same values, and are never prefixes
/// of one another. Also decodes altered bytes.
fn holds_by<K: Key + Drawn + Debug>(compare: impl Fn(&K, &K) -> Ordering) {
    let name = std::any::type_name::<K>();
    let mut random = Random(0x0DDE);
    for _ in 0..2_000 {
        let (a, b) = (K::draw(&mut random), K::draw(&mut random));
        let (bytes_a, bytes_b) = (a.encode(), b.encode());
        let order = compare(&a, &b);
        assert_eq!(bytes_a.cmp(&bytes_b), order, "{name}: {a:?} and {b:?}");
        assert!(order.is_eq() || !bytes_b.starts_with(&bytes_a), "{name}: {a:?} begins {b:?}");
        let back = K::decode(&bytes_a).unwrap_or_else(|error| panic!("{name}: {a:?}: {error}"));
        assert!(compare(&back, &a).is_eq(), "{name}: {a:?} became {back:?}");
        is_strict::<K>(&mut random, bytes_a);
    }
}

/// Checks that decoding is strict: truncated and extended bytes are rejected, and any bytes that decode to a key are
/// exactly the encoding of that key.
fn is_strict<K: Key + Debug>(random: &mut Random, mut bytes: Vec<u8>) {
    let length = bytes.len();
    assert!(length == 0 || K::decode(&bytes[..random.index(length)]).is_err(), "cut: {bytes:?}");
    bytes.push(random.next() as u8);
    assert!(K::decode(&bytes).is_err(), "one more: {bytes:?}");
    bytes.pop();
    if length > 0 {
        bytes[random.index(length)] = [0, 1, 0xFF, random.next() as u8][random.index(4)];
    }
    if let Ok(key) = K::decode(&bytes) {
        assert_eq!(key.encode(), bytes, "{key:?} has two encodings");
    }
}

fn holds<K: Key + Drawn + Debug + Ord>() {
    holds_by::<K>(Ord::cmp);
}

/// Every type in the table follows the rules of [`Key`].
#[test]
fn bytes_are_in_the_order_of_values() {
    holds::<u8>();
    holds::<u16>();
    holds::<u32>();
    holds::<u64>();
    holds::<u128>();
    holds::<i8>();
    holds::<i16>();
    holds::<i32>();
    holds::<i64>();
    holds::<i128>();
    holds_by::<f32>(f32::total_cmp);
    holds_by::<f64>(f64::total_cmp);
    holds::<bool>();
    holds::<char>();
    holds::<String>();
    holds::<Vec<u8>>();
    holds::<Duration>();
    holds::<SystemTime>();
    holds::<Option<String>>();
    holds::<Option<Option<i16>>>();
    holds::<[u8; 16]>();
    holds::<[String; 3]>();
    holds::<Reverse<String>>();
    holds::<Reverse<Option<u32>>>();
}

/// Tuples sort by their parts, for first parts of any length and with any bytes.
#[test]
fn tuples_sort_by_their_parts() {
    holds::<(String, u8)>();
    holds::<(Vec<u8>, Vec<u8>)>();
    holds::<(Option<Vec<u8>>, i8, String)>();
    holds::<(Reverse<Vec<u8>>, String, Reverse<i64>)>();
    holds::<((String, bool), Option<(u8, Vec<u8>)>)>();
    holds_by::<(f64, Vec<u8>)>(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
    holds_by::<Reverse<f64>>(|a, b| b.0.total_cmp(&a.0));
}

/// A key starts with an encoded prefix if and only if its first parts equal the parts of the prefix.
#[test]
fn prefixes_hold_what_has_their_parts() {
    let mut random = Random(7);
    for _ in 0..5_000 {
        let (a, b) = <((Vec<u8>, Option<i8>, String), (Vec<u8>, Option<i8>))>::draw(&mut random);
        let bytes = a.encode();
        assert_eq!(bytes.starts_with(&PrefixOf::<(Vec<u8>, Option<i8>, String)>::prefix(&(&b.0,))), a.0 == b.0);
        assert_eq!(
            bytes.starts_with(&PrefixOf::<(Vec<u8>, Option<i8>, String)>::prefix(&b)),
            (&a.0, a.1) == (&b.0, b.1)
        );
    }
}

fn contains(bounds: &(Bound<Vec<u8>>, Bound<Vec<u8>>), bytes: &Vec<u8>) -> bool {
    std::ops::RangeBounds::contains(bounds, bytes)
}

/// A range of keys contains the right rows, including rows whose keys continue after a bound.
#[test]
fn ranges_hold_what_lies_within() {
    let mut random = Random(8);
    for _ in 0..5_000 {
        let [start, end, key] = <[Vec<u8>; 3]>::draw(&mut random);
        let tail = u8::draw(&mut random);
        let mut row = key.encode();
        row.push(tail);
        let within = |bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>)| contains(&bounds, &row);
        assert_eq!(within(KeyBounds::<Vec<u8>>::row_bounds(&(&start..&end))), (&start..&end).contains(&&key));
        assert_eq!(within(KeyBounds::<Vec<u8>>::row_bounds(&(&start..=&end))), (&start..=&end).contains(&&key));
        assert_eq!(within(KeyBounds::<Vec<u8>>::row_bounds(&(&start..))), key >= start);
        assert_eq!(within(KeyBounds::<Vec<u8>>::row_bounds(&(..=&end))), key <= end);
        let open = (Bound::Excluded(&start), Bound::Unbounded);
        assert_eq!(within(KeyBounds::<Vec<u8>>::row_bounds(&open)), key > start);
        let all = (Bound::Excluded(u8::MAX), Bound::Unbounded);
        assert!(!contains(&KeyBounds::<u8>::row_bounds(&all), &vec![tail]));
    }
}

/// Values of each type have the encodings that the table documents.
#[test]
fn bytes_are_those_of_the_table() {
    assert_eq!(().encode(), []);
    assert_eq!(true.encode(), [1]);
    assert_eq!(0x0102u16.encode(), [1, 2]);
    assert_eq!((-1i16).encode(), [0x7F, 0xFF]);
    assert_eq!(1i16.encode(), [0x80, 1]);
    assert_eq!(1.0f32.encode(), [0xBF, 0x80, 0, 0]);
    assert_eq!((-1.0f32).encode(), [0x40, 0x7F, 0xFF, 0xFF]);
    assert_eq!('a'.encode(), [0, 0, 0, 0x61]);
    assert_eq!("a\0b".to_owned().encode(), [0x61, 0, 0xFF, 0x62, 0, 0]);
    assert_eq!(None::<u8>.encode(), [0]);
    assert_eq!(Some(7u8).encode(), [1, 7]);
    assert_eq!([1u16, 2].encode(), [0, 1, 0, 2]);
    assert_eq!((1u8, "a".to_owned()).encode(), [1, 0x61, 0, 0]);
    assert_eq!(Duration::new(1, 2).encode(), [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2]);
    let before = SystemTime::UNIX_EPOCH - Duration::from_nanos(1);
    assert_eq!(before.encode(), [0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3B, 0x9A, 0xC9, 0xFF]);
    assert_eq!(Reverse("a".to_owned()).encode(), [!0x61, 0xFF, 0xFF]);
    #[cfg(feature = "uuid")]
    assert_eq!(uuid::Uuid::from_u128(1).encode(), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
}

/// Borrowed values encode like the corresponding owned keys.
#[test]
fn borrowed_keys_have_the_same_bytes() {
    assert_eq!(encoded::<String>(&"ann"), "ann".to_owned().encode());
    assert_eq!(encoded::<Vec<u8>>(&b"ann"), b"ann".to_vec().encode());
    assert_eq!(
        encoded::<(String, Option<String>)>(&("ann", Some("b"))),
        ("ann".to_owned(), Some("b".to_owned())).encode()
    );
    let mut bytes = Vec::new();
    EncodeAs::<u64>::encode_into(&&7, &mut bytes);
    assert_eq!(bytes, 7u64.encode());
}
