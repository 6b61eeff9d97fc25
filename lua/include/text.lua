-- A whole number as text. `tostring`, `..` and cjson round numbers over 14 digits silently; scores have 16.
local function text(number)
  return string.format('%.0f', number)
end
