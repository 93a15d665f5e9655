//! Counters with names: a struct of numbers that can be added, and listed with their names.

macro_rules! count_fields {
    ($(#[doc = $summary:literal])+ $name:ident $($(#[doc = $doc:literal])+ $field:ident,)*) => {
        $(#[doc = $summary])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[doc = $doc])+ pub $field: u64,)*
        }

        impl $name {
            /// Adds other counts to these.
            pub fn add(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }

            /// The names of the counts that are zero.
            pub fn never_counted(&self) -> Vec<&'static str> {
                let counts = [$((stringify!($field), self.$field)),*];
                let zeros = counts.into_iter().filter(|(_, count)| *count == 0);
                zeros.map(|(name, _)| name).collect()
            }
        }
    };
}
