//! Encodings of keys that are composed of other keys. The encoded parts are concatenated. They need no separators,
//! because no encoding of a type is a prefix of another.

use std::cmp::Reverse;

use super::{DecodeError, EncodeAs, Key, take};

impl<K, X: EncodeAs<K>> EncodeAs<Option<K>> for Option<X> {
    fn encode_into(&self, bytes: &mut Vec<u8>) {
        match self {
            None => bytes.push(0),
            Some(value) => {
                bytes.push(1);
                value.encode_into(bytes);
            }
        }
    }
}

impl<K: Key> Key for Option<K> {
    fn decode_from(bytes: &mut &[u8]) -> Result<Option<K>, DecodeError> {
        match take(bytes, "an Option")? {
            [0] => Ok(None),
            [1] => K::decode_from(bytes).map(Some),
            _ => Err(DecodeError { expected: "0 or 1 of an Option", found: "another byte" }),
        }
    }

    fn fingerprint() -> String {
        format!("Option<{}>", K::fingerprint())
    }
}

impl<K, X: EncodeAs<K>, const N: usize> EncodeAs<[K; N]> for [X; N] {
    fn encode_into(&self, bytes: &mut Vec<u8>) {
        self.iter().for_each(|element| element.encode_into(bytes));
    }
}

impl<K: Key, const N: usize> Key for [K; N] {
    fn decode_from(bytes: &mut &[u8]) -> Result<[K; N], DecodeError> {
        let elements = (0..N).map(|_| K::decode_from(bytes)).collect::<Result<Vec<K>, _>>()?;
        Ok(elements.try_into().unwrap_or_else(|_| unreachable!("there are N of them")))
    }

    fn fingerprint() -> String {
        format!("[{}; {N}]", K::fingerprint())
    }
}

impl<K, X: EncodeAs<K>> EncodeAs<Reverse<K>> for Reverse<X> {
    fn encode_into(&self, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        self.0.encode_into(bytes);
        bytes[start..].iter_mut().for_each(|byte| *byte = !*byte);
    }
}

impl<K: Key> Key for Reverse<K> {
    fn decode_from(bytes: &mut &[u8]) -> Result<Reverse<K>, DecodeError> {
        let inverted: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
        let mut rest = &inverted[..];
        let key = K::decode_from(&mut rest)?;
        *bytes = &bytes[bytes.len() - rest.len()..];
        Ok(Reverse(key))
    }

    fn fingerprint() -> String {
        format!("Reverse<{}>", K::fingerprint())
    }
}

impl EncodeAs<()> for () {
    fn encode_into(&self, _bytes: &mut Vec<u8>) {}
}

impl Key for () {
    fn decode_from(_bytes: &mut &[u8]) -> Result<(), DecodeError> {
        Ok(())
    }
}

macro_rules! tuples {
    ($(($($key:ident $x:ident $part:ident),+);)*) => {$(
        impl<$($key, $x: EncodeAs<$key>),+> EncodeAs<($($key,)+)> for ($($x,)+) {
            fn encode_into(&self, bytes: &mut Vec<u8>) {
                let ($($part,)+) = self;
                $($part.encode_into(bytes);)+
            }
        }

        impl<$($key: Key),+> Key for ($($key,)+) {
            fn decode_from(bytes: &mut &[u8]) -> Result<($($key,)+), DecodeError> {
                Ok(($($key::decode_from(bytes)?,)+))
            }

            fn fingerprint() -> String {
                format!("({})", [$($key::fingerprint()),+].join(", "))
            }
        }
    )*};
}

tuples! {
    (A X a);
    (A X a, B Y b);
    (A X a, B Y b, C Z c);
    (A X a, B Y b, C Z c, D U d);
    (A X a, B Y b, C Z c, D U d, E V e);
    (A X a, B Y b, C Z c, D U d, E V e, F W f);
    (A X a, B Y b, C Z c, D U d, E V e, F W f, G S g);
    (A X a, B Y b, C Z c, D U d, E V e, F W f, G S g, H T h);
}
