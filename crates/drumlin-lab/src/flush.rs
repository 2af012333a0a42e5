//! Writes the processor's cache lines back to memory, which makes stores to persistent memory durable.
#![allow(unsafe_code)]

/// The instruction that writes a cache line back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LineFlush {
    /// Writes the line back and keeps it in the cache.
    #[cfg(target_arch = "x86_64")]
    Clwb,
    /// Writes the line back and evicts it; several evictions may be in flight.
    #[cfg(target_arch = "x86_64")]
    Clflushopt,
    /// Cleans the line to the point of coherency.
    #[cfg(target_arch = "aarch64")]
    Cvac,
}

const LINE_BYTES: usize = 64;

impl LineFlush {
    /// Returns the best instruction that this processor has.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn find() -> Option<LineFlush> {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").ok()?;
        let flags = cpuinfo.lines().find(|line| line.starts_with("flags"))?;
        let has = |name: &str| flags.split(' ').any(|flag| flag == name);
        if has("clwb") {
            return Some(LineFlush::Clwb);
        }
        has("clflushopt").then_some(LineFlush::Clflushopt)
    }

    /// Returns the best instruction that this processor has.
    #[cfg(target_arch = "aarch64")]
    pub(crate) fn find() -> Option<LineFlush> {
        Some(LineFlush::Cvac)
    }

    /// Returns the best instruction that this processor has.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub(crate) fn find() -> Option<LineFlush> {
        None
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            LineFlush::Clwb => "clwb + sfence",
            #[cfg(target_arch = "x86_64")]
            LineFlush::Clflushopt => "clflushopt + sfence",
            #[cfg(target_arch = "aarch64")]
            LineFlush::Cvac => "dc cvac + dsb",
        }
    }

    /// Writes the lines of `bytes` back, and waits until the writes have completed.
    pub(crate) fn persist(self, bytes: &[u8]) {
        // The first line may begin before `bytes` does.
        let skew = bytes.as_ptr().addr() % LINE_BYTES;
        let mut at = 0;
        while at < bytes.len() {
            let address = bytes[at..].as_ptr();
            at = (at + skew) / LINE_BYTES * LINE_BYTES + LINE_BYTES - skew;
            match self {
                // SAFETY: the address is in borrowed memory, the processor has the instruction (see `find`), and the
                // instruction changes no content.
                #[cfg(target_arch = "x86_64")]
                LineFlush::Clwb => unsafe {
                    std::arch::asm!("clwb [{}]", in(reg) address, options(nostack, preserves_flags));
                },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                LineFlush::Clflushopt => unsafe {
                    std::arch::asm!("clflushopt [{}]", in(reg) address, options(nostack, preserves_flags));
                },
                // SAFETY: as above; every such processor has the instruction, and Linux permits it in user mode.
                #[cfg(target_arch = "aarch64")]
                LineFlush::Cvac => unsafe {
                    std::arch::asm!("dc cvac, {}", in(reg) address, options(nostack, preserves_flags));
                },
            }
        }
        // SAFETY: a fence only orders accesses.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::asm!("sfence", options(nostack, preserves_flags));
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            std::arch::asm!("dsb sy", options(nostack, preserves_flags));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writing lines back changes no bytes, whatever the start and length.
    #[test]
    fn persisting_changes_nothing() {
        let Some(flush) = LineFlush::find() else { return };
        let bytes: Vec<u8> = (0..1000u32).map(|index| index as u8).collect();
        flush.persist(&bytes[3..997]);
        flush.persist(&[]);
        assert!(bytes.iter().enumerate().all(|(index, byte)| *byte == index as u8), "{}", flush.name());
    }
}
