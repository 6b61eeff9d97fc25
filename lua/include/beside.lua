-- Returns the key of a queue that stands beside its record `meta`, by its kind, such as `held`.
local function beside(meta, kind) return (string.gsub(meta, 'meta:{', kind .. ':{', 1)) end
