// For which level of instructions was this library compiled? Asked right after loading: a library that answers with
// another level than its name is not used.

extern "C" __attribute__((visibility("default"))) const char* hb_level() { return HB_LEVEL; }
